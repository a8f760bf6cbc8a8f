// SPDX-License-Identifier: BSD-3-Clause
//
// Copyright (c) 2020 Somebody Else
