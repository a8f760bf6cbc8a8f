// SPDX-License-Identifier: BSD-3-Clause
//
// See report_file.h.
#include "report_file.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>
#include <unistd.h>

namespace emu {

FILE *open_report(const char *variable)
{
    const char *path = getenv(variable);
    if (path == nullptr || path[0] == '\0')
        return nullptr;
    if (strcmp(path, "-") == 0 || strcmp(path, "stderr") == 0)
        return stderr;
    std::string name = path;
    for (size_t at = 0; (at = name.find("%p", at)) != std::string::npos;)
        name.replace(at, 2, std::to_string(getpid()));
    FILE *file = fopen(name.c_str(), "ae");
    if (file == nullptr)
        fprintf(stderr, "emulated driver: %s: cannot write %s: %s\n", variable, name.c_str(),
                strerror(errno));
    return file;
}

void close_report(FILE *file)
{
    if (file != nullptr && file != stderr)
        fclose(file);
}

} // namespace emu
