// SPDX-License-Identifier: BSD-3-Clause
//
// A user who sleeps while copies run, as UCP does it.
#ifndef NVLINK_TEST_UCT_SLEEPER_H
#define NVLINK_TEST_UCT_SLEEPER_H

#include "uct/entity.h"

#include <gtest/gtest.h>
#include <poll.h>

namespace nvl::test {

inline int descriptor(const entity &of)
{
    int fd = -1;
    EXPECT_EQ(ucx().uct_iface_event_fd_get(of.iface(), &fd), UCS_OK);
    return fd;
}

inline bool wakes(int fd, int milliseconds)
{
    pollfd one{fd, POLLIN, 0};
    return poll(&one, 1, milliseconds) == 1;
}

// As UCP sleeps: progress until there is nothing, arm, sleep. False if nobody woke it.
inline bool sleep_until(const completion &done, const entity &of, int fd)
{
    while (done.called == 0) {
        if (of.progress() != 0) {
            continue;
        }
        ucs_status_t status = ucx().uct_iface_event_arm(of.iface(), UCT_EVENT_SEND_COMP);
        if (status == UCS_ERR_BUSY) {
            continue;
        }
        EXPECT_EQ(status, UCS_OK);
        // Arming may have finished it.
        if (done.called == 0 && !wakes(fd, 5000)) {
            return false;
        }
    }
    return true;
}

} // namespace nvl::test

#endif
