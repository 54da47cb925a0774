//! Measures parsing and evaluation of selectors, compared with the equivalent CEL expression and, for evaluation, with
//! the bare label lookups that any evaluator has to make.

use crate::SuiteResult;
use crate::measure::{side_by_side, table, time, times};
use std::collections::{BTreeMap, HashMap};
use std::hint::black_box;
use tortie_model::selector::Selector;

const TERM_COUNTS: [usize; 3] = [1, 10, 100];
const LABEL_COUNTS: [usize; 3] = [3, 30, 300];

pub fn run() -> SuiteResult {
    parsing()?;
    evaluation()
}

fn parsing() -> SuiteResult {
    let mut rows = Vec::new();
    let mut smallest = None;
    for terms in TERM_COUNTS {
        let expression = BenchExpression::new(terms, LABEL_COUNTS[1]);
        Selector::parse(&expression.selector)?;
        cel::Program::compile(&expression.cel)?;
        let [ours, cel] = side_by_side([
            &mut || drop(black_box(Selector::parse(black_box(&expression.selector)))),
            &mut || drop(black_box(cel::Program::compile(black_box(&expression.cel)))),
        ]);
        let first = *smallest.get_or_insert(ours);
        let rate = expression.selector.len() as f64 * 1e3 / ours;
        rows.push(vec![
            terms.to_string(),
            time(ours),
            format!("{rate:.0} MB/s"),
            time(cel),
            times(cel / ours),
            times(ours / first),
        ]);
    }
    table(
        "Parsing a selector (a conjunction of all operators)",
        &["terms", "selector", "rate", "CEL", "CEL/selector", "growth"],
        &rows,
    );
    Ok(())
}

fn evaluation() -> SuiteResult {
    let mut rows = Vec::new();
    let mut smallest = None;
    for (terms, labels) in
        TERM_COUNTS.into_iter().flat_map(|terms| LABEL_COUNTS.map(|labels| (terms, labels)))
    {
        let expression = BenchExpression::new(terms, labels);
        let set = label_set(labels);
        let selector = Selector::parse(&expression.selector)?;
        let program = cel::Program::compile(&expression.cel)?;
        let mut context = cel::Context::default();
        context.add_variable("labels", set.clone().into_iter().collect::<HashMap<_, _>>())?;
        if !selector.matches(&set) || program.execute(&context)? != cel::Value::Bool(true) {
            return Err(format!("{} should match", expression.selector).into());
        }
        let [ours, lookups, cel] = side_by_side([
            &mut || {
                black_box(selector.matches(black_box(&set)));
            },
            &mut || {
                for key in &expression.keys {
                    black_box(set.get(black_box(key)));
                }
            },
            &mut || drop(black_box(program.execute(black_box(&context)))),
        ]);
        let first = *smallest.get_or_insert(ours);
        rows.push(vec![
            terms.to_string(),
            labels.to_string(),
            time(ours),
            time(lookups),
            times(ours / lookups),
            time(cel),
            times(cel / ours),
            times(ours / first),
        ]);
    }
    table(
        "Evaluating a selector (every term is true, so all are looked at)",
        &["terms", "labels", "selector", "lookups only", "selector/lookups", "CEL", "CEL/selector", "growth"],
        &rows,
    );
    Ok(())
}

/// The same condition as a selector and in CEL, and the labels it refers to.
struct BenchExpression {
    selector: String,
    cel: String,
    keys: Vec<String>,
}

impl BenchExpression {
    fn new(terms: usize, labels: usize) -> BenchExpression {
        let mut selector = Vec::new();
        let mut cel = Vec::new();
        let mut keys = Vec::new();
        for term in 0..terms {
            let n = term * 7 % labels;
            let (key, value) = (key(n), value(n));
            let (ours, theirs, used) = match term % 6 {
                0 => (format!("{key} == \"{value}\""), format!("labels[\"{key}\"] == \"{value}\""), key),
                1 => (
                    format!("{key} in {{\"blue\", \"green\", \"{value}\"}}"),
                    format!("labels[\"{key}\"] in [\"blue\", \"green\", \"{value}\"]"),
                    key,
                ),
                2 => (format!("has({key})"), format!("\"{key}\" in labels"), key),
                3 => (
                    format!("{key} starts with \"value\""),
                    format!("labels[\"{key}\"].startsWith(\"value\")"),
                    key,
                ),
                4 => {
                    let absent = format!("absent.example.org/{term}");
                    (format!("!has({absent})"), format!("!(\"{absent}\" in labels)"), absent)
                }
                _ => (format!("{key} != \"other\""), format!("labels[\"{key}\"] != \"other\""), key),
            };
            selector.push(ours);
            cel.push(theirs);
            keys.push(used);
        }
        BenchExpression { selector: selector.join(" && "), cel: cel.join(" && "), keys }
    }
}

fn label_set(size: usize) -> BTreeMap<String, String> {
    (0..size).map(|n| (key(n), value(n))).collect()
}

fn key(n: usize) -> String {
    format!("app.example.org/label-{n}")
}

fn value(n: usize) -> String {
    format!("value-{n}")
}
