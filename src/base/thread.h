// SPDX-License-Identifier: BSD-3-Clause
//
// Threads of a library in somebody else's process: no signal is ever delivered
// to one. Called by mem; calls pthread.
#ifndef NVLINK_BASE_THREAD_H
#define NVLINK_BASE_THREAD_H

#include <csignal>
#include <pthread.h>
#include <system_error>
#include <thread>
#include <utility>

namespace nvl {

// Starts `body` in a thread with that name (15 characters at most); a thread
// that is not joinable if the system gives none.
template<typename F> std::thread start_quiet_thread(const char *name, F &&body) noexcept
{
    sigset_t all, before;
    sigfillset(&all);
    // A new thread inherits the mask.
    pthread_sigmask(SIG_SETMASK, &all, &before);
    std::thread made;
    try {
        made = std::thread(std::forward<F>(body));
        (void)pthread_setname_np(made.native_handle(), name);
    } catch (const std::exception &) {
        made = std::thread();
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return made;
}

} // namespace nvl

#endif
