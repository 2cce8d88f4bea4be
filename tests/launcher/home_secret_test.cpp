// Where the job's secret is looked for if nobody names a file.

#include "launcher/secret.h"
#include "transport/cause.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <pwd.h>
#include <string>
#include <sys/wait.h>
#include <unistd.h>

namespace tsprun::detail::launcher::home_secret_test {
namespace {

constexpr uid_t kNobody = 65534;

/// Returns why a process of that user without HOME finds no secret.
std::string refusal_without_home(uid_t user) {
  int ends[2];
  if (::pipe(ends) != 0) return "no pipe";
  const pid_t child = ::fork();
  if (child == 0) {
    std::string why = "a secret was found";
    ::unsetenv("HOME");
    if (::setuid(user) != 0) why = "setuid failed";
    try {
      load_secret({}, {}, 0);
    } catch (const Error& error) {
      why = error.what();
    }
    ::_exit(::write(ends[1], why.data(), why.size()) == static_cast<ssize_t>(why.size()) ? 0 : 1);
  }
  ::waitpid(child, nullptr, 0);
  char text[1024];
  const ssize_t size = ::read(ends[0], text, sizeof text);
  ::close(ends[0]);
  ::close(ends[1]);
  return {text, static_cast<std::size_t>(size < 0 ? 0 : size)};
}

// srun --export=NONE sets no HOME.
TEST(TheSecretsFile, IsInTheHomeThatThePasswordDatabaseKnows) {
  if (::getuid() != 0) GTEST_SKIP() << "only root can become a user that has no home folder";
  const passwd* const nobody = ::getpwuid(kNobody);
  if (nobody == nullptr || ::access(nobody->pw_dir, F_OK) == 0) GTEST_SKIP() << "here user 65534 has a home folder";
  const std::string folder = nobody->pw_dir;
  EXPECT_NE(refusal_without_home(kNobody).find("making the secret " + folder), std::string::npos)
      << refusal_without_home(kNobody);
  constexpr uid_t kUnknown = 2'000'000'011;
  ASSERT_EQ(::getpwuid(kUnknown), nullptr);
  EXPECT_NE(refusal_without_home(kUnknown).find("no home of user 2000000011"), std::string::npos)
      << refusal_without_home(kUnknown);
}

}  // namespace
}  // namespace tsprun::detail::launcher::home_secret_test
