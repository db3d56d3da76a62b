#include "store_load.hpp"

#include <unistd.h>

#include <thread>

#include "rollring/ring.hpp"

namespace rollring::test {
namespace {

const StoreOptions options{.capacity_bytes = 4 << 20, .lanes = 16};

std::string key_of(std::uint32_t row) {
    return "row" + std::to_string(row);
}

// Version `version` of a row, which nothing else looks like.
std::vector<std::uint64_t> content_of(std::uint32_t row, std::uint64_t version) {
    std::vector<std::uint64_t> made(16 + mix(version) % 500);
    for (std::size_t i = 0; i < made.size(); i++) made[i] = mix(mix(version) + row + i);
    return made;
}

Store open_store(const std::string& name) {
    auto opened = Store::open(name, options);
    require(opened.has_value(), "{}", opened ? "" : opened.error().to_string());
    return std::move(*opened);
}

// False if there was no room in time: the books may be without a keeper for a moment.
bool put_row(Store& store, StoreLedger& ledger, std::uint32_t number) {
    StoreRow& row = ledger.rows[number];
    if (row.turn % 2 == 0) row.turn++;
    const std::uint64_t version = ++ledger.versions;
    const auto content = content_of(number, version);
    const std::string key = key_of(number);
    const StoreValue value{.key = key,
                           .form = {.dtype = {1, 64},
                                    .shape = {static_cast<std::uint32_t>(content.size())},
                                    .tag = static_cast<std::uint16_t>(number)},
                           .data = content.data()};
    Location at;
    const auto put = store.put({&value, 1}, {&at, 1}, Deadline::after_ms(1000));
    if (!put) {
        require(put.error().code == Errc::store_full, "{}", put.error().to_string());
        return false;
    }
    row.location = at.number;
    row.version = version;
    row.turn++;
    return true;
}

void clear_row(Store& store, StoreLedger& ledger, std::uint32_t number) {
    StoreRow& row = ledger.rows[number];
    if (row.turn % 2 == 0) row.turn++;
    const std::string key = key_of(number);
    const std::string_view keys[] = {key};
    const auto cleared = store.clear_keys(keys, patience());
    require(cleared.has_value(), "{}", cleared ? "" : cleared.error().to_string());
    row.location = 0;
    row.turn++;
}

// Whether the row was there whole, or was about to change.
void read_row(const Store& store, const StoreLedger& ledger, std::uint32_t number) {
    const StoreRow& row = ledger.rows[number];
    const std::uint32_t turn = row.turn;
    const Location at{row.location};
    const std::uint64_t version = row.version;
    if (turn % 2 != 0 || row.turn != turn || at.number == 0) return;
    const auto wanted = content_of(number, version);
    std::vector<std::uint64_t> copy(wanted.size());
    StoredValue found;
    auto read = store.find({&at, 1}, {&found, 1});
    if (read) {
        require(found.form.tag == number, "what lies at {} is of row {}, not of {}", at.number,
                found.form.tag, number);
        auto* const begin = reinterpret_cast<std::byte*>(copy.data());
        if (found.form.bytes() == wanted.size() * 8) {
            read = store.read({&found, 1}, {&begin, 1});
        } else {
            read = refused(Errc::not_stored, "another length");
        }
    }
    if (read) {
        require(copy == wanted, "row {} has other bytes than version {}", number, version);
        return;
    }
    require(read.error().code == Errc::not_stored, "{}", read.error().to_string());
    require(row.turn != turn, "row {}, version {} at {}, is gone, and nobody has touched it",
            number, version, at.number);
}

}  // namespace

int store_user_role(const std::vector<std::string>& arguments) {
    const Shared<StoreLedger> shared(arguments.at(1));
    StoreLedger& ledger = *shared.operator->();
    const auto index = static_cast<std::uint32_t>(std::stoul(arguments.at(2)));
    Store store = open_store(arguments.at(0));
    Dice dice{static_cast<std::uint64_t>(monotonic_ns())};
    while (ledger.ending == 0) {
        const auto own = index + store_users * dice.below(store_rows / store_users);
        if (dice.below(4) == 0 || !put_row(store, ledger, static_cast<std::uint32_t>(own))) {
            clear_row(store, ledger, static_cast<std::uint32_t>(own));
        }
        for (int i = 0; i < 4; i++) {
            read_row(store, ledger, static_cast<std::uint32_t>(dice.below(store_rows)));
        }
        ledger.steps++;
    }
    for (std::uint32_t row = index; row < store_rows; row += store_users) {
        if (ledger.rows[row].turn % 2 != 0) {
            require(put_row(store, ledger, row), "there is no room for row {}", row);
        }
    }
    return 0;
}

StoreRun::StoreRun() : name_(fmt::format("store-{}-{:x}", getpid(), monotonic_ns())) {
    static_cast<void>(open_store(name_));
}

StoreRun::~StoreRun() {
    for (const pid_t pid : users_) {
        if (pid != 0) kill_and_collect(pid);
    }
    static_cast<void>(Store::remove(name_, true));
}

bool StoreRun::is_kept() const {
    const auto stat = stat_ring(name_);
    return stat && stat->consumer_alive;
}

void StoreRun::start(std::size_t index, const std::string& fault) {
    users_[index] = start_self({"--store-user", name_, ledger_.fd(), std::to_string(index)}, fault);
}

void StoreRun::start_all() {
    for (std::size_t index = 0; index < store_users; index++) {
        if (users_[index] == 0) start(index);
    }
}

void StoreRun::go_on(std::uint64_t steps) {
    const Deadline deadline = patience();
    for (const std::uint64_t until = this->steps() + steps; this->steps() < until;) {
        require(!deadline.passed(), "nothing goes on");
        for (const pid_t pid : users_) {
            require(look_at(pid) != 'e', "a user has failed");
        }
        std::this_thread::yield();
    }
}

void StoreRun::finish() {
    go_on(20);
    ledger_->ending = 1;
    for (pid_t& pid : users_) require(collect(std::exchange(pid, 0)) == 0, "a user failed");
    Store store = open_store(name_);
    std::uint64_t there = 0;
    for (std::uint32_t row = 0; row < store_rows; row++) {
        read_row(store, *ledger_.operator->(), row);
        there += ledger_->rows[row].location != 0;
    }
    const auto come_to = [&](std::uint64_t values) {
        for (const Deadline deadline = patience(); store.stat().values != values;) {
            require(!deadline.passed(), "{} values are there, and {} should be",
                    store.stat().values, values);
            std::this_thread::yield();
        }
    };
    come_to(there);
    for (std::uint32_t row = 0; row < store_rows; row++) {
        clear_row(store, *ledger_.operator->(), row);
    }
    come_to(0);
    require(store.stat().used_bytes == 0, "{} bytes are used", store.stat().used_bytes);
}

void store_kills(std::uint64_t kills, Dice& dice) {
    std::uint64_t done = 0;
    while (done < kills) {
        StoreRun run;
        for (std::uint64_t i = 0; i < 20 && done < kills; i++, done++) {
            run.start_all();
            run.go_on(dice.below(40));
            kill_and_collect(std::exchange(run.user(dice.below(store_users)), 0));
        }
        run.start_all();
        run.finish();
    }
}

}  // namespace rollring::test
