// The example of README.md, word for word: the test `readme_example` compares.
#include <quire/alloc/host_driver.h>
#include <quire/alloc/runtime.h>
#include <quire/paging/kv_cache.h>

#include <cstdio>

int main() {
  using namespace quire;
  auto driver = HostDriver::Create({.memory_per_device = MiB(64)});
  auto runtime = Runtime::Create(*std::move(driver), {});
  // A tensor: memory from the pool of 2 MiB pages, freed in stream order.
  auto tensor = (*runtime)->allocator()->Allocate(MiB(3));
  // A KV cache on the same pages: 8 layers, 4 heads of 64, two sequences.
  auto layout = KvLayout::Create({.layers = 8, .kv_heads = 4, .head_dim = 64}, 8);
  auto cache = KvCache::Create((*runtime)->memory(), *layout,
                               {.max_sequence_length = 4096});
  auto sequence = (*cache)->Admit(100);  // 100 tokens are backed, 4096 reserved
  auto status = (*cache)->Step({{{*sequence, 101}}});
  std::printf("%s, %s\n", status.ToString().c_str(),
              FormatBytes((*cache)->GetStatistics().committed).c_str());
  // More than there is: the error says why, and who has it.
  auto refused = (*runtime)->allocator()->Allocate(GiB(1));
  std::printf("%s\n", refused.status().ToString().c_str());
  return tensor.ok() && status.ok() && !refused.ok() ? 0 : 1;
}
