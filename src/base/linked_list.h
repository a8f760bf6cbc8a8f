// SPDX-License-Identifier: BSD-3-Clause
//
// A list whose links are in its objects: joining and leaving it takes no memory, and an
// object can leave from anywhere. One thread at a time. Called by mem and uct.
#ifndef NVLINK_BASE_LINKED_LIST_H
#define NVLINK_BASE_LINKED_LIST_H

#include <cstddef>

namespace nvl {

template<typename T> struct list_link {
    T *next     = nullptr;
    T *previous = nullptr;
};

// Of objects that have `link` as a member; an object may be in one list for each that it
// has. Owns nothing.
template<typename T, list_link<T> T::*link> class linked_list {
public:
    linked_list()                               = default;
    linked_list(const linked_list &)            = delete;
    linked_list &operator=(const linked_list &) = delete;

    T *first() const noexcept
    {
        return first_;
    }

    static T *behind(const T &one) noexcept
    {
        return (one.*link).next;
    }

    size_t size() const noexcept
    {
        return size_;
    }

    // At the end.
    void add(T &one) noexcept
    {
        (one.*link)                                       = {nullptr, last_};
        (last_ != nullptr ? (last_->*link).next : first_) = &one;
        last_                                             = &one;
        ++size_;
    }

    // `one` is in it.
    void remove(T &one) noexcept
    {
        T *next = (one.*link).next, *previous = (one.*link).previous;
        (previous != nullptr ? (previous->*link).next : first_) = next;
        (next != nullptr ? (next->*link).previous : last_)      = previous;
        --size_;
    }

private:
    T     *first_ = nullptr;
    T     *last_  = nullptr;
    size_t size_  = 0;
};

} // namespace nvl

#endif
