// How often streams are asked while nothing but time helps: at intervals that
// grow, since none of them can be waited for alone and nobody knows which is
// done first.

#ifndef QUIRE_ALLOC_POLL_INTERVAL_H_
#define QUIRE_ALLOC_POLL_INTERVAL_H_

#include <algorithm>
#include <chrono>
#include <thread>

namespace quire {

class PollInterval {
 public:
  void Sleep() {
    std::this_thread::sleep_for(next_);
    next_ = std::min(next_ * 2, kLast);
  }

 private:
  static constexpr std::chrono::microseconds kFirst{20};
  static constexpr std::chrono::microseconds kLast{500};

  std::chrono::microseconds next_ = kFirst;
};

}  // namespace quire

#endif  // QUIRE_ALLOC_POLL_INTERVAL_H_
