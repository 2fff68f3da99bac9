// The example of README.md, word for word: the test `document_examples`
// compares.
#include <quire/alloc/host_driver.h>
#include <quire/alloc/runtime.h>
#include <quire/paging/kv_cache.h>

#include <cstdio>
#include <string>

int main() {
  using namespace quire;
  auto driver = *HostDriver::Create({.memory_per_device = MiB(64)});
  auto runtime = *Runtime::Create(std::move(driver), {});
  auto tensor = runtime->allocator()->Allocate(MiB(3));  // pages of 2 MiB
  auto layout = *KvLayout::Create({.layers = 8, .kv_heads = 4, .head_dim = 64}, 8);
  auto cache = *KvCache::Create(runtime->memory(), layout, {.max_sequence_length = 4096});
  auto sequence = cache->Admit(100);  // addresses for 4096 tokens, pages for 100
  auto grown = cache->Step({{{*sequence, 101}}});
  std::printf("KV: %s\n", FormatBytes(cache->GetStatistics().committed).c_str());
  auto refused = runtime->allocator()->Allocate(GiB(1));  // says why
  std::printf("%s\n", std::string(refused.status().message()).c_str());
  return tensor.ok() && grown.ok() && !refused.ok() ? 0 : 1;
}
