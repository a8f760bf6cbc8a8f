#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
#
# Makes ./configure from configure.ac. Needs autoconf, automake, libtool and pkg-config.
set -e
cd "$(dirname "$0")"
for tool in autoreconf automake libtoolize pkg-config; do
    if ! command -v $tool >/dev/null 2>&1; then
        echo "autogen.sh: $tool is missing: install autoconf, automake, libtool and pkg-config" >&2
        exit 1
    fi
done
mkdir -p build-aux m4
exec autoreconf --install --force --warnings=all,no-obsolete "$@"
