#pragma once
// A list through the elements of a slab, each of which has its neighbours: insertion and removal
// need neither memory nor a search.

#include <cstddef>
#include <cstdint>

#include "slab.hpp"

namespace rollring {

struct Neighbours {
    static constexpr std::uint32_t none = ~std::uint32_t{0};
    std::uint32_t previous = none;
    std::uint32_t next = none;
};

template <class T, Neighbours T::* neighbours>
class IntrusiveList {
  public:
    static constexpr std::uint32_t none = Neighbours::none;

    // The slab must outlive this object.
    explicit IntrusiveList(Slab<T>& slab) : slab_(&slab) {}

    [[nodiscard]] std::uint32_t first() const { return first_; }
    [[nodiscard]] std::uint32_t last() const { return last_; }
    [[nodiscard]] std::uint32_t next(std::uint32_t index) const { return of(index).next; }
    [[nodiscard]] std::uint32_t previous(std::uint32_t index) const { return of(index).previous; }
    [[nodiscard]] std::size_t size() const { return size_; }

    void push_back(std::uint32_t index) { insert_behind(last_, index); }
    void push_front(std::uint32_t index) { insert_behind(none, index); }
    // `before` == none: inserts at the front.
    void insert_behind(std::uint32_t before, std::uint32_t index) {
        const std::uint32_t after = before == none ? first_ : of(before).next;
        of(index) = {before, after};
        (before == none ? first_ : of(before).next) = index;
        (after == none ? last_ : of(after).previous) = index;
        size_++;
    }
    void erase(std::uint32_t index) {
        const Neighbours its = of(index);
        (its.previous == none ? first_ : of(its.previous).next) = its.next;
        (its.next == none ? last_ : of(its.next).previous) = its.previous;
        size_--;
    }

  private:
    [[nodiscard]] Neighbours& of(std::uint32_t index) const { return (*slab_)[index].*neighbours; }

    Slab<T>* slab_;
    std::uint32_t first_ = none;
    std::uint32_t last_ = none;
    std::size_t size_ = 0;
};

}  // namespace rollring
