#pragma once
// Processes that put, read and clear values of one store and die at any moment, and a ledger of the
// values that must be there.

#include <array>
#include <atomic>
#include <string>
#include <utility>
#include <vector>

#include "rollring/extras/store.hpp"
#include "support/load.hpp"

namespace rollring::test {

inline constexpr std::uint32_t store_users = 3;
inline constexpr std::uint32_t store_rows = 48;  // row k is written by user k mod store_users

// The known state of a key. `turn` is odd while its user changes it, or died in doing so.
struct StoreRow {
    std::atomic<std::uint32_t> turn;
    std::atomic<std::uint64_t> location;  // 0: it was cleared
    std::atomic<std::uint64_t> version;
};
struct StoreLedger {
    StoreRow rows[store_rows];
    std::atomic<std::uint64_t> versions;  // given ever
    std::atomic<std::uint64_t> steps;     // grows with all that is done
    std::atomic<std::uint32_t> ending;    // 1: put the leftovers of dead ones in order, and go
};

// A run: a store and its users, any of which keeps its books, and is started anew when it dies.
class StoreRun {
  public:
    StoreRun();
    StoreRun(const StoreRun&) = delete;
    StoreRun& operator=(const StoreRun&) = delete;
    ~StoreRun();

    [[nodiscard]] pid_t& user(std::size_t index) { return users_[index]; }
    // Whether some process keeps the books.
    [[nodiscard]] bool is_kept() const;
    [[nodiscard]] std::uint64_t steps() const { return ledger_->steps; }
    void start(std::size_t index, const std::string& fault = {});
    void start_all();
    // Waits until the counter has grown by `steps`, or a user has ended.
    void go_on(std::uint64_t steps);
    // Lets all come to their end, and checks the store's content then.
    void finish();

  private:
    std::string name_;
    Shared<StoreLedger> ledger_;
    std::array<pid_t, store_users> users_{};
};

// Of the process --store-user STORE LEDGER INDEX.
int store_user_role(const std::vector<std::string>& arguments);

// So many deaths at random moments.
void store_kills(std::uint64_t kills, Dice& dice);

}  // namespace rollring::test
