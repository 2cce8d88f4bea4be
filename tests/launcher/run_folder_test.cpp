// The folder that a training saves into, as tsprun sees it before and after ranks run.
#include "launcher/commands/run_folder.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace tsprun::detail::launcher::run_folder_test {
namespace {

TEST(ResumeCommand, IsWhatWasTypedWithoutWhatACheckpointBrings) {
  using Words = std::vector<std::string>;
  EXPECT_EQ(resume_command(Words{"-n", "4", "train", "--config", "nano", "--data", "a.txt", "--save", "runs"}, "runs"),
            "tsprun -n 4 train --config nano --data a.txt --save runs --resume runs");
  EXPECT_EQ(resume_command(Words{"train", "--model", "hf", "--no-checksum", "--overwrite", "--steps", "9"}, "runs"),
            "tsprun train --steps 9 --resume runs");
  EXPECT_EQ(resume_command(Words{"train", "--model=hf", "--resume=old", "--resume", "older", "--steps=9"}, "new"),
            "tsprun train --steps=9 --resume new");
  EXPECT_EQ(resume_command(Words{"train", "--data", "it's a book.txt", ""}, "my runs"),
            "tsprun train --data 'it'\\''s a book.txt' '' --resume 'my runs'");
}

}  // namespace
}  // namespace tsprun::detail::launcher::run_folder_test
