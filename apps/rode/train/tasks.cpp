// SPDX-License-Identifier: Apache-2.0
// `rode tasks`: the tasks of the lab, and what one of them says.
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "commands.h"
#include "lab/task/model_size.h"
#include "lab/task/task.h"
#include "support.h"

namespace rode::cli {
namespace {

struct TasksArguments {
  std::string name;
  std::string scale;
  bool json = false;
  bool toml = false;
};

std::string length_of(const lab::Task& task) {
  return task.train.steps > 0 ? fmt::format("{} steps", task.train.steps)
                              : fmt::format("{} epochs", task.train.epochs);
}

// "1387535360 parameters (1.39 B)"
std::string size_text(const lab::Task& task) {
  const auto count = static_cast<double>(lab::parameter_count(task.model));
  const std::string short_form = count < 1e6   ? fmt::format("{:.1f} k", count / 1e3)
                                 : count < 1e9 ? fmt::format("{:.1f} M", count / 1e6)
                                               : fmt::format("{:.2f} B", count / 1e9);
  return fmt::format(
      "{} parameters ({}){}", lab::parameter_count(task.model), short_form,
      task.model.vocab_from_data
          ? fmt::format(" with {} tokens; the dataset's vocabulary replaces this number",
                        task.model.vocab_size)
          : "");
}

void print_list(const std::vector<lab::Task>& tasks) {
  std::vector<std::vector<std::string>> rows = {
      {"task", "model", "data", "length", "batch", "optimizers"}};
  for (const lab::Task& task : tasks) {
    rows.push_back({task.name, task.model.kind, task.data.kind, length_of(task),
                    fmt::format("{}", task.train.batch),
                    fmt::format("{}", task.optimizers.size())});
  }
  fmt::print("{}\n'rode tasks NAME' shows a task; NAME may be the path of a .toml file.\n",
             format_table(rows, 3));
}

void run(const TasksArguments& arguments) {
  if (arguments.toml && arguments.name.empty()) {
    throw UsageError("--toml writes one task; name it: rode tasks NAME --toml");
  }
  if (!arguments.scale.empty() && arguments.name.empty()) {
    throw UsageError("--scale needs a task: rode tasks NAME --scale tiny");
  }
  if (!arguments.name.empty()) {
    const lab::Task task = lab::load_task(arguments.name, arguments.scale, {});
    if (arguments.json) {
      fmt::print("{}\n", lab::to_json(task).dump(2));
    } else {
      fmt::print("# {}: {}\n{}", task.name, size_text(task), lab::to_toml(task));
    }
    return;
  }
  std::vector<lab::Task> tasks;
  for (const std::string& name : lab::task_names()) tasks.push_back(lab::load_task(name));
  if (!arguments.json) {
    print_list(tasks);
    return;
  }
  Json list = Json::array();
  for (const lab::Task& task : tasks) list.push_back(lab::to_json(task));
  fmt::print("{}\n", Json{{"tasks", list}}.dump(2));
}

}  // namespace

void add_tasks_command(CLI::App& app) {
  const auto arguments = std::make_shared<TasksArguments>();
  CLI::App* command = app.add_subcommand("tasks", "List the lab's tasks, or show one");
  command->add_option(
      "name", arguments->name,
      "name of a task, or the path of a .toml file; the task is printed as such a file");
  command->add_option("--scale", arguments->scale,
                      "a scale defined in the task's file: tiny, small, ...");
  CLI::Option* json = command->add_flag("--json", arguments->json, "print JSON");
  command->add_flag("--toml", arguments->toml, "print the task as a .toml file (the default)")
      ->excludes(json);
  command->footer(
      "Examples:\n  rode tasks qwen2-114m --toml > mine.toml\n  rode tasks gpt2 --scale tiny");
  command->callback([=] { arguments_as_usage([&] { run(*arguments); }); });
}

}  // namespace rode::cli
