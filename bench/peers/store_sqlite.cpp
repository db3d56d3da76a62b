// SQLite with its write-ahead log: a table of blobs, and an fsync of the log with each commit.

#include <sqlite3.h>

#include <memory>

#include "peers/store.hpp"

namespace bench {
namespace {

struct CloseSqlite {
    void operator()(sqlite3* database) const { sqlite3_close(database); }
    void operator()(sqlite3_stmt* statement) const { sqlite3_finalize(statement); }
};
using Database = std::unique_ptr<sqlite3, CloseSqlite>;
using Statement = std::unique_ptr<sqlite3_stmt, CloseSqlite>;

void run_sql(sqlite3* database, const char* text) {
    if (sqlite3_exec(database, text, nullptr, nullptr, nullptr) != SQLITE_OK) {
        fail(std::string("SQLite: ") + text + ": " + sqlite3_errmsg(database));
    }
}

void with_sqlite(const std::filesystem::path& directory, const StorePeer::Shape& shape,
                 const std::function<void(const StorePeer::Commit&)>& work) {
    sqlite3* opened = nullptr;
    const int refused = sqlite3_open((directory / "records.sqlite").c_str(), &opened);
    const Database database(opened);
    if (refused != SQLITE_OK) fail("SQLite cannot open a file");
    // The largest pages: all records are longer.
    run_sql(opened, "PRAGMA page_size=65536");
    run_sql(opened, "PRAGMA journal_mode=WAL");  // tidy-ok: their word
    run_sql(opened, "PRAGMA synchronous=FULL");
    run_sql(opened, "CREATE TABLE records (number INTEGER PRIMARY KEY, bytes BLOB)");
    sqlite3_stmt* prepared = nullptr;
    sqlite3_prepare_v2(opened, "INSERT INTO records VALUES (?, ?)", -1, &prepared, nullptr);
    const Statement insert(prepared);
    work([&](std::uint64_t number, std::span<const std::byte> records) {
        run_sql(opened, "BEGIN");
        for (; !records.empty(); records = records.subspan(shape.record_bytes)) {
            sqlite3_bind_int64(prepared, 1, static_cast<sqlite3_int64>(number++));
            sqlite3_bind_blob64(prepared, 2, records.data(), shape.record_bytes, SQLITE_STATIC);
            if (sqlite3_step(prepared) != SQLITE_DONE) {
                fail(std::string("SQLite: ") + sqlite3_errmsg(opened));
            }
            sqlite3_reset(prepared);
        }
        run_sql(opened, "COMMIT");
    });
}

}  // namespace

StorePeer sqlite_store() {
    return {.key = "sqlite", .name = "SQLite, write-ahead log, FULL", .open = with_sqlite};
}

}  // namespace bench
