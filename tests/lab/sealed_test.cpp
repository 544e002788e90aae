// SPDX-License-Identifier: Apache-2.0
// Checksums of the JSON files and lines that a run leaves.
#include <string>

#include "lab/run/folder.h"
#include "lab/run/log.h"
#include "lab/support.h"

namespace rode::lab {
namespace {

TEST(RunFolder, NoBitOfItsFilesChangesUnnoticed) {
  const Scratch scratch;
  write_json(scratch / "result.json", {{"final_loss", 2.5}, {"status", "finished"}});
  const std::string good = read_file(scratch / "result.json");
  std::string notes;
  const Note note = [&](const std::string& text) { notes += text; };
  EXPECT_EQ(read_json(scratch / "result.json", note).dump(),
            R"({"final_loss":2.5,"status":"finished"})");
  EXPECT_EQ(notes, "");
  // Without the last byte, the end of the line.
  for (std::size_t bit = 0; bit < 8 * (good.size() - 1); ++bit) {
    std::string bad = good;
    bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << (bit % 8)));
    write_file(scratch / "result.json", bad);
    EXPECT_MENTIONS(error_of([&] { read_json(scratch / "result.json"); }), "result.json")
        << bit << ": " << bad;
  }
  write_file(scratch / "result.json", R"({"final_loss": 2.5})");
  EXPECT_EQ(read_json(scratch / "result.json", note)["final_loss"], 2.5);
  EXPECT_MENTIONS(notes, "has no checksum");
}

TEST(RunLog, ADamagedLineIsToldWhenTheRunGoesOnAndRefusedByReports) {
  const Scratch scratch;
  const RunFolder folder(scratch / "run");
  folder.start({{"optimizer", "adamw"}}, false);
  std::uint64_t bytes = 0;
  {
    RunLog log(folder, 0, 0, false);
    for (int i = 0; i < 3; ++i) log.step({.step = i, .loss = 3.25});
    bytes = log.bytes();
  }
  std::string notes;
  const Note note = [&](const std::string& text) { notes += text; };
  {
    const RunLog log(folder, bytes, 3, false, note);
  }
  EXPECT_EQ(notes, "");
  std::string text = read_file(folder.log());
  text[text.find("3.25", text.find('\n'))] = '2';
  write_file(folder.log(), text);
  {
    const RunLog log(folder, bytes, 3, false, note);
  }
  EXPECT_MENTIONS(notes, "1 damaged line(s), the first is line 2");
  EXPECT_MENTIONS(error_of([&] { read_json_lines(folder.log()); }), "line 2");
}

}  // namespace
}  // namespace rode::lab
