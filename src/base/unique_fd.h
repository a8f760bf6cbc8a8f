// SPDX-License-Identifier: BSD-3-Clause
//
// A file descriptor that is closed by its owner's destructor. Called by mem;
// calls close.
#ifndef NVLINK_BASE_UNIQUE_FD_H
#define NVLINK_BASE_UNIQUE_FD_H

#include <unistd.h>

#include <utility>

namespace nvl {

class unique_fd {
public:
    unique_fd() = default;

    explicit unique_fd(int fd) noexcept : fd_(fd)
    {
    }

    unique_fd(unique_fd &&other) noexcept : fd_(std::exchange(other.fd_, -1))
    {
    }

    unique_fd &operator=(unique_fd &&other) noexcept
    {
        std::swap(fd_, other.fd_);
        return *this;
    }

    ~unique_fd()
    {
        if (fd_ >= 0) {
            (void)close(fd_);
        }
    }

    int get() const noexcept
    {
        return fd_;
    }

    explicit operator bool() const noexcept
    {
        return fd_ >= 0;
    }

    int release() noexcept
    {
        return std::exchange(fd_, -1);
    }

private:
    int fd_ = -1;
};

} // namespace nvl

#endif
