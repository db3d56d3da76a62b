#pragma once
// Shared memory as the system has it: named objects, their pages, and mappings of them. An error is
// an errno, because only the caller knows its meaning. The only user of Boost.Interprocess.

#include <cstddef>
#include <cstdint>
#include <expected>
#include <memory>
#include <string>

namespace rollring {

enum class Access { read_write, read_only };

template <class T>
using OrErrno = std::expected<T, int>;

// A mapped part of a descriptor's memory; unmapped by the destructor.
class Mapping {
  public:
    Mapping();
    Mapping(Mapping&&) noexcept;
    Mapping& operator=(Mapping&&) noexcept;
    ~Mapping();

    [[nodiscard]] static OrErrno<Mapping> of(int fd, std::uint64_t offset, std::uint64_t bytes,
                                             bool writable);

    [[nodiscard]] std::byte* data() const { return data_; }
    [[nodiscard]] std::uint64_t bytes() const { return bytes_; }

    // The T at a byte offset of this mapping. The caller stays within the mapped bytes.
    template <class T>
    [[nodiscard]] T& at(std::uint64_t offset) const {
        return *reinterpret_cast<T*>(data_ + offset);
    }

    // Adds these bytes, whose pages are reserved, to this process's page table, so that their first
    // touch costs no fault. Best effort: old kernels cannot do it.
    void populate(std::uint64_t offset, std::uint64_t bytes, bool to_write) const;

  private:
    struct Region;
    std::unique_ptr<Region> region_;
    std::byte* data_ = nullptr;
    std::uint64_t bytes_ = 0;
};

// An open shared-memory object; closed by the destructor.
class SharedObject {
  public:
    SharedObject();
    SharedObject(SharedObject&&) noexcept;
    SharedObject& operator=(SharedObject&&) noexcept;
    ~SharedObject();

    // `name` begins with a slash.
    [[nodiscard]] static OrErrno<SharedObject> open(const std::string& name, Access access);
    // Makes it with mode 0600 and no bytes; EEXIST if the name is taken.
    [[nodiscard]] static OrErrno<SharedObject> make(const std::string& name);

    [[nodiscard]] int fd() const;

  private:
    struct Handle;
    std::unique_ptr<Handle> handle_;
};

namespace detail {
// Reserves pages, regardless of signals; returns an errno, 0 for success.
int allocate(int fd, std::uint64_t offset, std::uint64_t bytes);
}  // namespace detail

}  // namespace rollring
