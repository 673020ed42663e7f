//! Prints how often each kind of site gets each verdict: `verdict_matrix SEEDS`. Some minutes.
//!
//! `scripts/verdict-matrix` writes it into docs/leaks.md.

#[path = "../tests/simulator/mod.rs"]
mod simulator;

use allocsample_leaks::Verdict;
use simulator::kinds::{KINDS, Kind, Truth};

const RUNS_S: [f64; 4] = [5.0, 30.0, 120.0, 600.0];
/// Percent of leak, possible leak, growing, undecided, and any other verdict.
type Cell = [f64; 5];

fn column(verdict: Option<Verdict>) -> usize {
    match verdict {
        Some(Verdict::Leak) => 0,
        Some(Verdict::PossibleLeak) => 1,
        Some(Verdict::Growing) => 2,
        Some(Verdict::Undecided) => 3,
        _ => 4,
    }
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let seeds: u64 = arguments
        .next()
        .map_or(50, |it| it.parse().expect("a number"));
    let wanted = arguments.next().unwrap_or_default();
    let chosen: Vec<&Kind> = KINDS
        .iter()
        .filter(|it| it.name.contains(&wanted))
        .collect();
    let next = std::sync::atomic::AtomicUsize::new(0);
    let rows = std::thread::scope(|scope| {
        let (next, chosen) = (&next, &chosen);
        let work = move || {
            let mut done: Vec<(usize, [Cell; 4])> = Vec::new();
            loop {
                let place = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                let Some(kind) = chosen.get(place) else {
                    return done;
                };
                done.push((place, RUNS_S.map(|run_s| cell(kind, seeds, run_s))));
                eprintln!("{}", kind.name);
            }
        };
        let others: Vec<_> = (0..2).map(|_| scope.spawn(work)).collect();
        let mut rows: Vec<_> = others
            .into_iter()
            .flat_map(|it| it.join().expect("no panic"))
            .collect();
        rows.sort_by_key(|(place, _)| *place);
        rows
    });
    println!("| kind of site | 5 s | 30 s | 120 s | 600 s |");
    println!("| --- | --- | --- | --- | --- |");
    let mut of_truth: Option<Truth> = None;
    for (place, cells) in &rows {
        let kind = &chosen[*place];
        if of_truth != Some(kind.truth) {
            println!("| **{}** | | | | |", title(kind.truth));
            of_truth = Some(kind.truth);
        }
        let cells = cells.map(|cell| cell.map(|it| format!("{it:.0}")).join(" / "));
        println!("| {} | {} |", kind.name, cells.join(" | "));
    }
    println!();
    println!("| of all kinds | 5 s | 30 s | 120 s | 600 s |");
    println!("| --- | --- | --- | --- | --- |");
    let of = |truth: Truth, run: usize, value: fn(&Cell) -> f64| -> Vec<f64> {
        let rows = rows
            .iter()
            .filter(|(place, _)| chosen[*place].truth == truth);
        rows.map(|(_, cells)| value(&cells[run])).collect()
    };
    let mean = |truth, value| {
        [0, 1, 2, 3].map(|run| {
            let all = of(truth, run, value);
            all.iter().sum::<f64>() / all.len().max(1) as f64
        })
    };
    let most = |truth, value| {
        [0, 1, 2, 3].map(|run| of(truth, run, value).into_iter().fold(0.0, f64::max))
    };
    let print = |name: &str, values: [f64; 4]| {
        let values = values.map(|value| format!("{value:.1} %"));
        println!("| {name} | {} |", values.join(" | "));
    };
    print(
        "leaks named (leak, possible leak, growing)",
        mean(Truth::Leak, |it| it[0] + it[1] + it[2]),
    );
    print(
        "leaks named leak or possible leak",
        mean(Truth::Leak, |it| it[0] + it[1]),
    );
    print(
        "leaks that are named or undecided, not hidden",
        mean(Truth::Leak, |it| 100.0 - it[4]),
    );
    print(
        "harmless kinds called leak, mean",
        mean(Truth::Harmless, |it| it[0]),
    );
    print(
        "harmless kinds called leak, worst kind",
        most(Truth::Harmless, |it| it[0]),
    );
    print(
        "harmless kinds called possible leak, mean",
        mean(Truth::Harmless, |it| it[1]),
    );
    print(
        "harmless kinds called possible leak, worst kind",
        most(Truth::Harmless, |it| it[1]),
    );
    print(
        "kinds like a leak called leak, worst kind",
        most(Truth::LikeALeak, |it| it[0]),
    );
    print(
        "kinds like a leak of a part of the blocks called leak, worst kind",
        most(Truth::LikeAPartialLeak, |it| it[0]),
    );
    print(
        "open kinds called leak or possible leak, worst kind",
        most(Truth::Open, |it| it[0] + it[1]),
    );
}

fn title(truth: Truth) -> &'static str {
    match truth {
        Truth::Leak => "leaks",
        Truth::Harmless => "harmless, and the data show it",
        Truth::LikeALeak => "harmless, with the data of a leak until the end of the run",
        Truth::LikeAPartialLeak => {
            "harmless, with the data of a leak of a part of the blocks until the end of the run"
        }
        Truth::Open => "not decided by the data",
    }
}

fn cell(kind: &Kind, seeds: u64, run_s: f64) -> Cell {
    let mut cell = [0.0; 5];
    for seed in 0..seeds {
        cell[column(kind.verdict(seed, run_s))] += 1.0;
    }
    cell.map(|count| 100.0 * count / seeds as f64)
}
