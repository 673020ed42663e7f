//! The command `allocsample`.

mod args;
mod commands;
mod exit;
mod filter;
mod go_heap;
mod growing;
mod harmless;
mod http;
mod inherited;
mod jvm;
mod memory;
mod output_bound;
mod output_file;
mod output_format;
mod packed;
mod processes;
mod profiles;
mod progress;
mod running;
mod terminal;

use args::Command;
use profiles::View;

#[global_allocator]
static ALLOCATOR: memory::Bounded = memory::Bounded;

fn main() -> std::process::ExitCode {
    memory::give_large_blocks_back();
    let arguments = match args::parse() {
        Ok(arguments) => arguments,
        Err(status) => return status,
    };
    if arguments.no_limits {
        allocsample_profile::lift_limits();
    }
    if let Some(charge) = arguments.command.charge() {
        profiles::charge(charge);
    }
    let heap = arguments.command.narrow().and_then(|it| it.heap.as_deref());
    if let Some(view) = heap.and_then(View::of_heap) {
        profiles::show(view);
    }
    let result = match arguments.command {
        Command::Run(run) => commands::run::run(&run),
        Command::Attach(attach) => commands::attach::attach(&attach),
        Command::Detach(detach) => commands::attach::detach(&detach),
        Command::Report(report) => commands::report::run(&report),
        Command::Leaks(leaks) => commands::leaks::run(&leaks),
        Command::Diff(diff) => commands::diff::run(&diff),
        Command::Ctl(ctl) => commands::ctl::run(&ctl),
        Command::Join(join) => commands::join::run(&join),
        Command::Symbolize(symbolize) => commands::symbolize::run(&symbolize),
        Command::Convert(convert) => commands::convert::run(&convert),
        Command::Query(query) => commands::query::run(&query),
        Command::View(view) => commands::view::run(&view),
        Command::Push(push) => commands::push::run(&push),
        Command::Serve(serve) => commands::serve::run(&serve),
        Command::Memory(memory) => commands::memory::run(&memory),
        Command::Top(top) => commands::top::run(&top),
        Command::Install(install) => commands::install::run(&install),
    };
    exit::with(result)
}
