// What `--rdma` and TSP_RDMA say: which ports a rank may use, and how. The choice from what a machine has is in device.h.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tsprun::detail::verbs {

/// How queue pairs are made and addressed. -1: as the row of kSettings says.
struct Settings {
  int retries = -1;
  int timeout = -1;
  int mtu = -1;
  int gid = -1;
  int family = -1;
  int roce = -1;
  int pkey = -1;
  int sl = -1;
  int tc = -1;
  int hops = -1;
  int whole = -1;
  int nics = -1;
  int pairs = -1;
};

/// A row of the table of settings, "name=value" in the option.
struct SettingRow {
  std::string_view name;
  int Settings::*field;
  int lowest;
  int highest;
  std::string_view absent;   ///< what holds if it isn't given
  std::string_view meaning;  ///< what it does
};

/// Table of all settings. That of docs/how-to/use-rdma.md is made of this one, which a test checks.
inline constexpr std::array<SettingRow, 13> kSettings = {{
    {"retries", &Settings::retries, 0, 7, "6",
     "tries after the first before the adapter gives a peer up; 7 is for ever on some, soft-RoCE among them"},
    {"timeout", &Settings::timeout, 1, 31, "about half of --timeout in all",
     "one try lasts 4.096 µs · 2^timeout (20: 4.3 s), on some adapters up to four times as long"},
    {"mtu", &Settings::mtu, 256, 4096, "the port's", "largest packet in bytes: 256, 512, 1024, 2048 or 4096"},
    {"gid", &Settings::gid, 0, 255, "chosen", "index of the GID"},
    {"family", &Settings::family, 4, 6, "4, else 6", "addresses among which a RoCE GID is chosen: 4 or 6"},
    {"roce", &Settings::roce, 1, 2, "2", "version of RoCE"},
    {"pkey", &Settings::pkey, 1, 65535, "the first of a full member, else the first",
     "partition of an InfiniBand fabric, such as 0x8001"},
    {"sl", &Settings::sl, 0, 15, "0", "service level; over RoCE the priority of frames with a VLAN"},
    {"tc", &Settings::tc, 0, 255, "0", "traffic class: DSCP · 4, as the fabric's lossless class has it"},
    {"hops", &Settings::hops, 1, 255, "64", "routers that a packet may pass"},
    {"whole", &Settings::whole, 0, 1'000'000, "64",
     "ranks of other nodes up to which queue pairs have their whole length from the start; with more, each is small until it is "
     "used"},
    {"nics", &Settings::nics, 1, 8, "all that are its own",
     "adapters over which a rank spreads large messages at most: 1 is one alone"},
    {"pairs", &Settings::pairs, 1, 8, "1",
     "queue pairs by each adapter for a peer's large messages, where a bond or a fabric of several ways tells connections apart"},
}};

/// A port that the option names.
struct PortName {
  std::string device;
  int port = 0;  ///< 0: any of the device's
  int gid = -1;  ///< -1: as the settings say

  bool is_of(std::string_view of_device, int number) const { return device == of_device && (port == 0 || port == number); }
};

/// Value of `--rdma`, words separated by commas: "device", "device:port" or "device:port:gid-index" for each port to use, in the
/// order of local ranks, or all behind a "^" to use none of them; and "name=value" for settings. Empty: choose.
struct DeviceChoice {
  std::vector<PortName> named;
  std::vector<PortName> left_out;
  Settings settings;
  std::string text;  ///< as typed

  /// Returns true if it says which ports shall be used: then nothing else will do.
  bool names_ports() const { return !named.empty(); }

  /// Parses the value. Throws Error(refused) naming the part that is wrong, and what is expected.
  static DeviceChoice parse(std::string_view text);
};

}  // namespace tsprun::detail::verbs
