// SPDX-License-Identifier: BSD-3-Clause
//
// One row for each variable.
#include "uct/config.h"

namespace nvl {

namespace {

const char *const completion_names[] = {"event", "word", nullptr};

} // namespace

void config_fill(const ucx_api &api, config_rows *rows) noexcept
{
    field_builder       row(api);
    ucs_config_field_t *md = rows->md;

    *md++ = row.md_base();
    *md++ = row.ulunits("IMPORT_CACHE_COUNT", "1024",
                        "Memory regions of peers that stay open while no key names them. Beyond "
                        "this many the one that was unused longest is closed.",
                        NVL_CONFIG_MEMBER(md_config, import_cache_count));
    *md++ = row.memunits("IMPORT_CACHE_SIZE", "16g",
                         "Bytes of the memory regions of peers that stay open while no key names "
                         "them. An open region keeps its owner's GPU memory occupied.",
                         NVL_CONFIG_MEMBER(md_config, import_cache_size));
    *md++ = row.string("SOCKET_DIR", "",
                       "Folder for the sockets by which descriptors of VMM memory and of memory "
                       "pools reach peers in containers with another network namespace; one that "
                       "all of them see and may write to. Within a network namespace none is "
                       "needed.",
                       NVL_CONFIG_MEMBER(md_config, socket_dir));
    *md++ = row.boolean("HOST_MEMORY", "y",
                        "Copies between host memory of this process and the GPUs of peers in one "
                        "step. \"n\" leaves host memory to the other transports.",
                        NVL_CONFIG_MEMBER(md_config, host_memory));
    *md++ = row.boolean("ATOMICS", "n",
                        "Offers atomic operations on the GPU memory of peers, by the copy kernel, "
                        "where all pairs of GPUs have them in hardware. UCX 1.22 ends the process "
                        "where one fails.",
                        NVL_CONFIG_MEMBER(md_config, atomics));
    *md++ = row.boolean("STRICT", "n",
                        "\"y\" makes an operation fail whose remote GPU memory cannot be reached "
                        "directly, with the reason in the log, where UCX would otherwise take a "
                        "slower path. For finding such memory, not for production.",
                        NVL_CONFIG_MEMBER(md_config, strict));
    *md++ = field_builder::end();

    ucs_config_field_t *iface = rows->iface;

    *iface++ = row.iface_base();
    *iface++ =
        row.ternary_auto("KERNEL", "auto",
                         "Copies small and medium operations by a kernel that lingers on the "
                         "GPU while there is work. \"no\" leaves everything to the copy "
                         "engines; \"yes\" takes the kernel for a lone operation too where the "
                         "copy engine would end it sooner.",
                         NVL_CONFIG_MEMBER(iface_config, kernel));
    *iface++ =
        row.time("IDLE", "50us",
                 "The copy kernel leaves the GPU after so long without work. 5 s at most; the same "
                 "limit holds for NARROW, STAY, HELLO and GAP.",
                 NVL_CONFIG_MEMBER(iface_config, idle));
    *iface++ = row.time("NARROW", "10us",
                        "A copy kernel for streams leaves all but one of its SMs after so long "
                        "without work, or later where streams follow each other later.",
                        NVL_CONFIG_MEMBER(iface_config, narrow));
    *iface++ = row.time("STAY", "2ms",
                        "The copy kernel leaves after so long in all, and is followed by another "
                        "while there is work: what waits for the whole GPU waits no longer.",
                        NVL_CONFIG_MEMBER(iface_config, stay));
    *iface++ = row.time("HELLO", "50us",
                        "A copy kernel that has not started after so long, since other work fills "
                        "the GPU, is given up while operations wait; the copy engines do them.",
                        NVL_CONFIG_MEMBER(iface_config, hello));
    *iface++ = row.time("GAP", "200us",
                        "The copy kernel is launched by operations that follow each other within "
                        "this time: a single one does not pay for it.",
                        NVL_CONFIG_MEMBER(iface_config, gap));
    *iface++ = row.uint("BLOCKS", "32",
                        "Blocks of the copy kernel for streams of operations, one on each SM that "
                        "it uses. (For lone small operations it is one block of 4 warps.)",
                        NVL_CONFIG_MEMBER(iface_config, blocks));
    *iface++ = row.uint("WARPS", "16", "Warps in each of these blocks, 2 to 16.",
                        NVL_CONFIG_MEMBER(iface_config, warps));
    *iface++ =
        row.memunits("ALONE", "8k", "Largest operation that one warp copies alone; others are cut.",
                     NVL_CONFIG_MEMBER(iface_config, alone));
    *iface++ = row.memunits("CHUNK_SMALL", "4k", "Pieces of lone operations up to 64 KiB.",
                            NVL_CONFIG_MEMBER(iface_config, chunk_small));
    *iface++ = row.memunits("CHUNK_LARGE", "8k", "Pieces of larger lone operations.",
                            NVL_CONFIG_MEMBER(iface_config, chunk_large));
    *iface++ =
        row.memunits("CHUNK_STREAM", "16k",
                     "Pieces of operations in a stream; larger operations are cut into pieces of "
                     "up to twice that.",
                     NVL_CONFIG_MEMBER(iface_config, chunk_stream));
    *iface++ = row.uint("AHEAD", "32",
                        "In a stream of operations so many warps look for the next ones in host "
                        "memory themselves, 0 to 32.",
                        NVL_CONFIG_MEMBER(iface_config, ahead));
    *iface++ = row.memunits("PUT_LONE_MAX", "512k",
                            "Largest put for the copy kernel when nothing else is in flight.",
                            NVL_CONFIG_MEMBER(iface_config, put_lone_max));
    *iface++ = row.memunits("GET_LONE_MAX", "1m",
                            "Largest get for the copy kernel when nothing else is in flight.",
                            NVL_CONFIG_MEMBER(iface_config, get_lone_max));
    *iface++ = row.memunits("PUT_STREAM_MAX", "8m",
                            "Largest put for the copy kernel in a stream of operations.",
                            NVL_CONFIG_MEMBER(iface_config, put_stream_max));
    *iface++ = row.memunits("GET_STREAM_MAX", "32m",
                            "Largest get for the copy kernel in a stream of operations.",
                            NVL_CONFIG_MEMBER(iface_config, get_stream_max));
    *iface++ =
        row.enumeration("COMPLETION", "event",
                        "How the end of a copy engine's operation is seen: \"event\" queries "
                        "CUDA events, \"word\" lets the GPU write a word of host memory "
                        "(slower in a stream of operations, no driver call to poll).",
                        NVL_CONFIG_MEMBER(iface_config, completion), completion_names);
    *iface++ = row.uint("DEPTH", "256",
                        "Operations in flight on one copy engine lane (one direction to one peer); "
                        "rounded up to a power of two. More are kept pending.",
                        NVL_CONFIG_MEMBER(iface_config, depth));
    *iface++ = row.uint("MAX_POLL", "64", "Operations that one progress call finishes at most.",
                        NVL_CONFIG_MEMBER(iface_config, max_poll));
    *iface++ = row.bandwidth("BW", "auto",
                             "Bandwidth that UCP is told, for all pairs of GPUs; \"auto\" takes it "
                             "from the machine's topology.",
                             NVL_CONFIG_MEMBER(iface_config, bandwidth));
    *iface++ = row.time("LAT", "3us", "Latency that UCP is told for an operation.",
                        NVL_CONFIG_MEMBER(iface_config, latency));
    *iface++ =
        row.time("OVERHEAD", "1us", "Processor time that UCP is told for posting an operation.",
                 NVL_CONFIG_MEMBER(iface_config, overhead));
    *iface++ =
        row.bandwidth("HOST_PUT_BW", "11000MBps",
                      "Bandwidth that UCP is told for host memory to a peer's GPU. More than "
                      "UCX_CMA_BW would have UCP send messages between host memories through "
                      "GPU memory; raise it where a network card takes what is to go to GPUs.",
                      NVL_CONFIG_MEMBER(iface_config, host_put_bandwidth));
    *iface++ = row.bandwidth("HOST_GET_BW", "480000MBps",
                             "Bandwidth that UCP is told for a peer's GPU to host memory. It is a "
                             "bid: a network card gets a share of each message where its figure "
                             "is more than a quarter of this (UCX_MULTI_LANE_MAX_RATIO).",
                             NVL_CONFIG_MEMBER(iface_config, host_get_bandwidth));
    *iface++ = row.memunits("HOST_STAGE", "4m",
                            "Page-locked memory of a GPU through which pageable host memory goes.",
                            NVL_CONFIG_MEMBER(iface_config, host_stage));
    *iface++ = row.memunits("HOST_CHUNK", "256k",
                            "Parts in which pageable host memory goes; the processor copies one or "
                            "two in a progress call.",
                            NVL_CONFIG_MEMBER(iface_config, host_chunk));
    *iface++ = row.memunits("HOST_INLINE", "16k",
                            "Largest put from pageable host memory that is copied in the call that "
                            "posts it.",
                            NVL_CONFIG_MEMBER(iface_config, host_inline));
    *iface++ = field_builder::end();
}

} // namespace nvl
