// SPDX-License-Identifier: Apache-2.0
// The command `rode`: parses, runs one subcommand, turns errors into messages and exit codes.
//
// Exit codes: 0 done, 1 the work failed, 2 the command line was wrong.
#include <cstdio>
#include <exception>
#include <new>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "commands.h"
#include "core/nearest.h"
#include "python/python.h"
#include "rode/error.h"
#include "rode/version.h"
#include "support.h"

namespace {

constexpr int kFailed = 1;
constexpr int kWrongUsage = 2;

void complain(std::string_view message) {
  fmt::print(stderr, "rode: error: {}\n", rode::cli::on_terminal(message));
}

// The innermost subcommand that was recognised.
const CLI::App& parsed_command(const CLI::App& app) {
  const auto inner = app.get_subcommands();
  return inner.empty() ? app : parsed_command(*inner.front());
}

// "rode bench step" for that subcommand.
std::string command_path(const CLI::App& command) {
  const CLI::App* parent = command.get_parent();
  return parent == nullptr ? "rode" : command_path(*parent) + " " + command.get_name();
}

// CLI11 first reports what is required and absent; an unknown word is more helpful.
std::string explain(const CLI::App& app, const CLI::ParseError& error) {
  const CLI::App& command = parsed_command(app);
  const std::vector<std::string> left = command.remaining();
  if (left.empty()) return error.what();
  const std::string word = left.front().substr(0, left.front().find('='));
  std::vector<std::string> names;
  if (word.starts_with('-')) {
    for (const CLI::Option* option : command.get_options()) names.push_back(option->get_name());
    return fmt::format("unknown flag '{}'; did you mean '{}'?", word, rode::nearest(word, names));
  }
  if (command.get_require_subcommand_min() == 0) {
    return fmt::format("unexpected argument '{}'", left.front());
  }
  for (const CLI::App* inner : command.get_subcommands({})) names.push_back(inner->get_name());
  return fmt::format("unknown subcommand '{}'; did you mean '{}'? expected {}", left.front(),
                     rode::nearest(left.front(), names), fmt::join(names, ", "));
}

// The library's remedies name its own options; this one has a flag.
void hint_at_skipping(const CLI::App& app) {
  const CLI::Option* flag = parsed_command(app).get_option_no_throw("--on-non-finite");
  if (flag == nullptr || flag->as<std::string>() == "skip") return;
  fmt::print(stderr,
             "rode: hint: with '--on-non-finite skip', a parameter whose gradient holds NaN or Inf "
             "stays unchanged and the others are updated\n");
}

int wrong_usage(const CLI::App& app, std::string_view message) {
  complain(message);
  fmt::print(stderr, "rode: hint: see '{} --help'\n", command_path(parsed_command(app)));
  return kWrongUsage;
}

int run(CLI::App& app, int argc, char** argv) {
  try {
    if (argc > 1 && rode::cli::is_python_command(argv[1])) {
      rode::cli::run_python_command(argv[1], {argv + 2, argv + argc});
    }
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    // Asking for help or for the version arrives as an error that means success, even beside a
    // word that means nothing.
    const CLI::App& command = parsed_command(app);
    const bool unknown = !command.get_allow_extras() && !command.remaining().empty();
    if (error.get_exit_code() == 0 && !unknown) return app.exit(error);
    return wrong_usage(app, explain(app, error));
  } catch (const rode::cli::UsageError& error) {
    return wrong_usage(app, error.what());
  } catch (const rode::cli::AlreadyTold& told) {
    return told.code();
  } catch (const std::bad_alloc&) {
    complain("out of memory; use smaller shapes or a machine with more memory");
    return kFailed;
  } catch (const rode::Error& error) {
    complain(error.what());
    if (std::string_view(error.what()).find("on_non_finite") != std::string_view::npos) {
      hint_at_skipping(app);
    }
    return kFailed;
  } catch (const std::exception& error) {
    complain(error.what());
    return kFailed;
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) try {
  CLI::App app{
      "rode: optimizers for neural-network training that update the radius and the direction of\n"
      "every weight matrix by separate rules, with the baselines they are compared with.",
      "rode"};
  app.set_help_flag("-h,--help", "print this help message and exit");
  app.set_version_flag("--version", fmt::format("rode {}", rode::version()),
                       "print the version and exit");
  app.require_subcommand(1);
  app.footer("'rode SUBCOMMAND --help' lists a subcommand's options.");
  rode::cli::add_optimizers_command(app);
  rode::cli::add_step_command(app);
  rode::cli::add_bench_command(app);
  rode::cli::add_data_command(app);
  rode::cli::add_tasks_command(app);
  rode::cli::add_train_command(app);
  rode::cli::add_compare_command(app);
  rode::cli::add_report_command(app);
  rode::cli::add_theory_command(app);
  rode::cli::add_python_commands(app);

  const int code = run(app, argc, argv);
  // A full disk or a closed pipe at stdout must not look like success.
  if (std::fflush(stdout) != 0 && code == 0) {
    complain("could not write to standard output");
    return kFailed;
  }
  return code;
} catch (...) {  // only if not even a message could be formatted
  return kFailed;
}
