//! Tests of the whole language: vectors, rejected inputs, properties.

use super::*;
use proptest::prelude::*;
use std::collections::{BTreeMap, HashMap};

fn parse(text: &str) -> Selector {
    Selector::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn canonical(text: &str) -> String {
    parse(text).to_string()
}

fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
}

#[test]
fn vectors() {
    for (text, print, id) in [
        ("all()", "all()", "s:5y5I3VdRZfDU01O--xXAPx2yxCQQqMf0M6IWug"),
        ("", "all()", "s:5y5I3VdRZfDU01O--xXAPx2yxCQQqMf0M6IWug"),
        ("role == \"db\"", "role == \"db\"", "s:rV61RKD1Q8wo61pyeB0j2rwE3eiBOFbx0SsYKg"),
        (
            "env in {\"prod\", \"stage\"} && !has(legacy)",
            "(env in {\"prod\", \"stage\"} && !has(legacy))",
            "s:0CQkUKtL2OPxVZUzIwcTzvYuqLc6-MxwFkBiWw",
        ),
        ("a in {\"z\",\"z\",\"x\",}", "a in {\"x\", \"z\"}", "s:XgDBaHZl_vT_u3vwjyBqs6TEOXSKVHICTGMr_A"),
        ("a notin{\"q\"}", "a not in {\"q\"}", "s:n_Wx9z0VkAlyRLqaxxUtBp9qX6AT4elV2o_ldw"),
        ("k startswith \"p\"", "k starts with \"p\"", "s:7kpEbmsZ_LbvmkQgT3B85rj7YZXE-mcbKCmBiw"),
        ("! !  !has(x)", "!has(x)", "s:bjyVLLTiO-IFshFfQIzG4MBLE_S11yavDPYRAA"),
        (
            "role==\"web\"&&!(env in {\"b\",\"a\"}||has(tmp))",
            "(role == \"web\" && !(env in {\"a\", \"b\"} || has(tmp)))",
            "s:ql5-tr3sVrvSIch5fqD5bVSP6j9mEL_r_zzu1A",
        ),
        (
            "a == \"\" && b contains \"\"",
            "(a == \"\" && b contains \"\")",
            "s:nLMzaWMG6hl5tzdaWRACROHIPjNi9SU8geQdug",
        ),
    ] {
        let selector = parse(text);
        assert_eq!(selector.to_string(), print);
        assert_eq!(selector.id(), id, "{text}");
    }
}

#[test]
fn ids_of_ports_and_services() {
    let db = parse("role == 'db'");
    assert_eq!(named_port_id(&db, "tcp", "pg"), "n:ylqfGPx76RSi8sBg_YiB7tBTBweogZcMky94kA");
    assert_eq!(service_id("shop", "cart"), "svc:whfywhJOILB-_z1R002xyIPi8OAx5NseyDvddw");
    assert_eq!(service_ip_id("shop", "cart"), "svcnoport:_3kvS4vpE69vGibofPE6tv0EbrhmMBHnDFo7NA");
}

#[test]
fn canonical_text() {
    for (text, print) in [
        (" \t ", "all()"),
        ("( ( all( ) ) )", "all()"),
        ("global(\t)", "global()"),
        ("has( a-b.c/d_1 )", "has(a-b.c/d_1)"),
        ("k=='it is \"quoted\"'", "k == 'it is \"quoted\"'"),
        ("k==\"it's\"", "k == \"it's\""),
        ("k in {}", "k in {}"),
        ("k in {'\"', \"'\"}", "k in {'\"', \"'\"}"),
        ("k\tends \t with'x'", "k ends with \"x\""),
        ("k endswith'x'", "k ends with \"x\""),
        ("k not \t in{ 'b' , 'a' , }", "k not in {\"a\", \"b\"}"),
        ("k contains'x'", "k contains \"x\""),
        ("contains contains \"x\"", "contains contains \"x\""),
        ("in in {\"x\"}", "in in {\"x\"}"),
        ("not in {\"x\"}", "not in {\"x\"}"),
        ("not not in {\"x\"}", "not not in {\"x\"}"),
        (
            "has == 'x' && all != 'y' || global in {'z'}",
            "((has == \"x\" && all != \"y\") || global in {\"z\"})",
        ),
        ("!a == \"b\" && c == \"d\"", "(!a == \"b\" && c == \"d\")"),
        ("!!has(a)", "has(a)"),
        ("!(!has(a))", "has(a)"),
        ("!!!(!has(a))", "has(a)"),
        ("!(a == 'b' || has(c))", "!(a == \"b\" || has(c))"),
        ("(has(a)) && (has(b) && has(c))", "(has(a) && (has(b) && has(c)))"),
        ("(has(a) && has(b)) && has(c)", "((has(a) && has(b)) && has(c))"),
        (
            "has(a) && has(b) || has(c) && has(d) || has(e)",
            "((has(a) && has(b)) || (has(c) && has(d)) || has(e))",
        ),
        ("has(a) || has(b) && has(c)", "(has(a) || (has(b) && has(c)))"),
        ("k == 'a\nb'", "k == \"a\nb\""),
        ("k == 'grüß'", "k == \"grüß\""),
    ] {
        assert_eq!(canonical(text), print, "{text}");
    }
    let longest = "k".repeat(512);
    assert_eq!(canonical(&format!("has({longest})")), format!("has({longest})"));
}

#[test]
fn refused() {
    for text in [
        "role",
        "role web",
        "role == web",
        "\"web\" == role",
        "role in \"web\"",
        "role in {,\"a\"}",
        "role in {\"a\",,\"b\"}",
        "role in {,}",
        "has (x)",
        "has()",
        "has( )",
        "has(a b)",
        "has(\"a\")",
        "all(",
        "all(x)",
        "all ()",
        "all",
        "()",
        "(",
        ")",
        "(has(a)",
        "has(a))",
        "has(a) &&",
        "&& has(a)",
        "has(a) ||",
        "!",
        "a! = 'b'",
        "!= 'b'",
        "a = \"b\"",
        "a === \"b\"",
        "a == \"b\" & has(c)",
        "a == \"b\" | has(c)",
        "a == \"b\" has(c)",
        "a inx {\"b\"}",
        "a in.x {\"b\"}",
        "a containsx 'b'",
        "a starts 'b'",
        "a not 'b'",
        "a == \"b",
        "a == 'b\"",
        "has(a)\n",
        "has(a)\n&& has(b)",
        "a\n== 'b'",
        "has(a)\r",
        "a == 'b' \u{a0}",
        "ä == 'b'",
        "a in {'b'",
        "a in {'b' 'c'}",
        "a in {b}",
        "a has(b)",
        "has(a) !has(b)",
        "a == {'b'}",
    ] {
        assert!(Selector::parse(text).is_err(), "{text}");
    }
    let key = "k".repeat(513);
    assert!(Selector::parse(&format!("{key} == 'a'")).is_err());
    assert!(Selector::parse(&format!("has({key})")).is_err());
}

#[test]
fn errors_say_what_was_expected_where() {
    for (text, message) in [
        (
            "role web",
            "expected an operator (==, !=, in, not in, contains, starts with, ends with) at byte 5, found `web`",
        ),
        (
            "role == web && has(c) && has(d)",
            "expected a quoted string at byte 8, found `web && has(c) && has...`",
        ),
        ("has(a) &&", "expected a label key, has(), all(), global(), ! or ( at byte 9, found the end"),
        ("has()", "expected a label key at byte 4, found `)`"),
        ("has(a b)", "expected ) at byte 6, found `b)`"),
        ("has(a))", "expected &&, || or the end at byte 6, found `)`"),
        ("(has(a)", "expected &&, || or ) at byte 7, found the end"),
        ("has(a)\n", "expected &&, || or the end at byte 6, found `\\n`"),
        ("a == 'b", "expected a closing ' for the string that starts at byte 5 at byte 7, found the end"),
        ("a in 'b'", "expected a set such as {\"a\", \"b\"} at byte 5, found `'b'`"),
        ("a in {'b' 'c'}", "expected , or } at byte 10, found `'c'}`"),
        ("a in {b}", "expected a quoted string or } at byte 6, found `b}`"),
    ] {
        assert_eq!(
            Selector::parse(text).unwrap_err().to_string().replace("\\'", "'").replace("\\\"", "\""),
            message
        );
    }
    let long = Selector::parse(&"k".repeat(600)).unwrap_err();
    assert_eq!((long.offset, long.expected.as_str()), (0, "a label key of at most 512 bytes (it has 600)"));
}

#[test]
fn evaluation() {
    let set = labels(&[("role", "web"), ("empty", ""), ("env", "prod")]);
    for (text, matches) in [
        ("role == 'web'", true),
        ("role == 'db'", false),
        ("gone == ''", false),
        ("empty == ''", true),
        ("role != 'db'", true),
        ("role != 'web'", false),
        ("gone != 'web'", true),
        ("role in {'db', 'web', 'x'}", true),
        ("role in {'db', 'x'}", false),
        ("role in {}", false),
        ("gone in {''}", false),
        ("role not in {'db'}", true),
        ("role not in {'web', 'db'}", false),
        ("gone not in {'web'}", true),
        ("gone not in {}", true),
        ("role contains 'e'", true),
        ("role contains ''", true),
        ("empty contains ''", true),
        ("gone contains ''", false),
        ("role contains 'x'", false),
        ("role starts with 'we'", true),
        ("role starts with 'eb'", false),
        ("role ends with 'eb'", true),
        ("role ends with 'we'", false),
        ("gone starts with ''", false),
        ("gone ends with ''", false),
        ("has(empty)", true),
        ("has(gone)", false),
        ("all()", true),
        ("global()", true),
        ("", true),
        ("!all()", false),
        ("!role == 'db' && env == 'prod'", true),
        ("has(gone) && has(role) || has(env)", true),
        ("has(gone) && (has(role) || has(env))", false),
    ] {
        let selector = parse(text);
        assert_eq!(selector.matches(&set), matches, "{text}");
        assert_eq!(selector.matches(&set.clone().into_iter().collect::<HashMap<_, _>>()), matches, "{text}");
    }
}

#[test]
fn prefixes_every_key() {
    let selector = parse("a == 'x' && !(b in {'y'} || has(c)) && all() && global() && d starts with 'a'");
    assert_eq!(
        selector.prefixed("pcns.").to_string(),
        "(pcns.a == \"x\" && !(pcns.b in {\"y\"} || has(pcns.c)) && all() && global() && pcns.d starts with \"a\")"
    );
}

#[test]
fn finds_global() {
    for (text, alone, used) in [
        ("global()", true, true),
        ("( global( ) )", true, true),
        ("!global()", false, true),
        ("has(a) && (has(b) || !global())", false, true),
        ("a == 'global()'", false, false),
        ("global == 'x'", false, false),
        ("all()", false, false),
    ] {
        assert_eq!((parse(text).is_global(), parse(text).uses_global()), (alone, used), "{text}");
    }
}

#[test]
fn requirements_of_conjunctions() {
    let one_of = |values: &[&'static str]| LabelCondition::OneOf(values.to_vec());
    let of = |text: &str| {
        let selector = parse(text);
        let found = selector.requirements();
        let labels: Vec<_> = found.labels.iter().map(|(k, v)| format!("{k} {v:?}")).collect();
        (found.impossible, labels.join("; "))
    };
    let is = |labels: &[(&str, LabelCondition<'_>)]| {
        (false, labels.iter().map(|(k, v)| format!("{k} {v:?}")).collect::<Vec<_>>().join("; "))
    };
    assert_eq!(of(""), is(&[]));
    assert_eq!(of("a == 'x'"), is(&[("a", one_of(&["x"]))]));
    assert_eq!(of("!a != 'x'"), is(&[("a", one_of(&["x"]))]));
    assert_eq!(of("!a == 'x' && b != 'y' && b not in {'z'}"), is(&[]));
    assert_eq!(of("!(a not in {'x', 'y'})"), is(&[("a", one_of(&["x", "y"]))]));
    assert_eq!(
        of("a contains 'x' && has(b) && !has(c) && (d in {'1', '2'} && d in {'2', '3'})"),
        is(&[
            ("a", LabelCondition::Present),
            ("b", LabelCondition::Present),
            ("c", LabelCondition::Absent),
            ("d", one_of(&["2"]))
        ])
    );
    assert_eq!(of("!(has(a) || b != 'x')"), is(&[("a", LabelCondition::Absent), ("b", one_of(&["x"]))]));
    assert_eq!(of("has(a) || has(b)"), is(&[]));
    assert_eq!(of("!(has(a) && has(b))"), is(&[]));
    assert_eq!(of("has(a) && a == 'x' && a starts with 'x'"), is(&[("a", one_of(&["x"]))]));
    for text in ["!all()", "a in {}", "a == 'x' && a == 'y'", "has(a) && !has(a)", "!has(a) && a == 'x'"] {
        assert!(of(text).0, "{text}");
    }
}

/// Nests to the maximum depth of the parser, with every kind of node on each level.
#[test]
fn deep_nesting_is_bounded() {
    let nested =
        |depth: usize| format!("{}has(x){}", "has(a) || has(b) && !(".repeat(depth), ")".repeat(depth));
    let deepest = Selector::parse(&nested(500)).unwrap();
    assert!(Selector::parse(&deepest.to_string()).unwrap() == deepest);
    assert!(deepest.clone() == deepest);
    assert!(!deepest.matches(&labels(&[])));
    assert!(!deepest.uses_global());
    assert_eq!(deepest.prefixed("p.").requirements(), LabelConditions::default());
    assert_eq!(Selector::parse(&nested(501)).unwrap_err().expected, "at most 1000 levels of nesting");
    assert_eq!(Selector::parse(&nested(100_000)).unwrap_err().expected, "at most 1000 levels of nesting");
    assert_eq!(canonical(&format!("{}has(a){}", "(".repeat(1000), ")".repeat(1000))), "has(a)");
    assert!(Selector::parse(&"(".repeat(1_000_000)).is_err());
    assert_eq!(canonical(&format!("{}has(a)", "!".repeat(1_000_001))), "!has(a)");
    let wide = vec!["has(a)"; 100_000].join(" && ");
    assert!(parse(&wide).matches(&labels(&[("a", "")])));
}

#[test]
fn nodes_stay_small() {
    assert!(size_of::<SelectorNode>() <= 40, "{}", size_of::<SelectorNode>());
}

/// An expression tree that is independent of the parser and its normal form.
#[derive(Clone, Debug)]
enum TestExpression {
    Atom(&'static str, &'static str, Vec<String>),
    Not(usize, Box<TestExpression>),
    And(Vec<TestExpression>),
    Or(Vec<TestExpression>),
}

const KEYS: [&str; 4] = ["a", "b.c/d", "in", "has"];

fn quoted(value: &str, double: bool) -> String {
    match double && !value.contains('"') || value.contains('\'') {
        true => format!("\"{value}\""),
        false => format!("'{value}'"),
    }
}

impl TestExpression {
    fn text(&self, blank: &str, double: bool) -> String {
        let each = |items: &[TestExpression], symbol: &str| {
            let texts: Vec<_> = items.iter().map(|item| format!("({})", item.text(blank, double))).collect();
            texts.join(&format!("{blank}{symbol}{blank}"))
        };
        match self {
            TestExpression::Atom(key, "has", _) => format!("has({blank}{key}{blank})"),
            TestExpression::Atom(_, name @ ("all" | "global"), _) => format!("{name}({blank})"),
            TestExpression::Atom(key, operator @ ("in" | "not in"), values) => {
                let values: Vec<_> = values.iter().map(|value| quoted(value, double)).collect();
                format!(
                    "{key} {operator}{blank}{{{blank}{}{blank}}}",
                    values.join(&format!("{blank},{blank}"))
                )
            }
            TestExpression::Atom(key, operator, values) => {
                format!("{key} {operator}{blank}{}", quoted(&values[0], double))
            }
            TestExpression::Not(times, inner) => {
                format!("{}({})", format!("!{blank}").repeat(*times), inner.text(blank, double))
            }
            TestExpression::And(items) => each(items, "&&"),
            TestExpression::Or(items) => each(items, "||"),
        }
    }

    fn holds(&self, labels: &BTreeMap<String, String>) -> bool {
        match self {
            TestExpression::Atom(key, operator, values) => {
                let label = labels.get(*key);
                let first = values.first().cloned().unwrap_or_default();
                match *operator {
                    "all" | "global" => true,
                    "has" => label.is_some(),
                    "==" => label.is_some() && *label.unwrap() == first,
                    "!=" => label.is_none() || *label.unwrap() != first,
                    "in" => label.is_some() && values.iter().any(|value| value == label.unwrap()),
                    "not in" => label.is_none() || values.iter().all(|value| value != label.unwrap()),
                    "contains" => label.is_some_and(|label| label.contains(&first)),
                    "starts with" => label.is_some_and(|label| label.strip_prefix(&first).is_some()),
                    "ends with" => label.is_some_and(|label| label.strip_suffix(&first).is_some()),
                    other => panic!("{other}"),
                }
            }
            TestExpression::Not(times, inner) => inner.holds(labels) != (times % 2 == 1),
            TestExpression::And(items) => !items.iter().any(|item| !item.holds(labels)),
            TestExpression::Or(items) => items.iter().filter(|item| item.holds(labels)).count() > 0,
        }
    }
}

fn value() -> impl Strategy<Value = String> {
    prop_oneof![
        8 => proptest::sample::select(vec!["", "x", "xy", "yx", "all()"]).prop_map(str::to_owned),
        1 => "[^\"]{0,4}",
        1 => "[^']{0,4}",
    ]
}

fn expr() -> impl Strategy<Value = TestExpression> {
    let operators =
        vec!["all", "global", "has", "==", "!=", "in", "not in", "contains", "starts with", "ends with"];
    let atom = (proptest::sample::select(&KEYS[..]), proptest::sample::select(operators), any::<u8>())
        .prop_flat_map(|(key, operator, n)| {
            let count = if operator.ends_with("in") { usize::from(n % 4) } else { 1 };
            (Just(key), Just(operator), proptest::collection::vec(value(), count))
        })
        .prop_map(|(key, operator, values)| TestExpression::Atom(key, operator, values));
    atom.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            (0..4usize, inner.clone()).prop_map(|(times, inner)| TestExpression::Not(times, Box::new(inner))),
            proptest::collection::vec(inner.clone(), 1..4).prop_map(TestExpression::And),
            proptest::collection::vec(inner, 1..4).prop_map(TestExpression::Or),
        ]
    })
}

fn label_set() -> impl Strategy<Value = BTreeMap<String, String>> {
    proptest::collection::btree_map(
        proptest::sample::select(&KEYS[..]).prop_map(str::to_owned),
        value(),
        0..5,
    )
}

proptest! {
    #[test]
    fn canonical_text_is_a_fixed_point(expr in expr(), blank in "[ \t]{0,2}", double: bool) {
        let selector = parse(&expr.text(&blank, double));
        let printed = selector.to_string();
        let again = parse(&printed);
        prop_assert_eq!(&again, &selector);
        prop_assert_eq!(again.to_string(), printed);
        prop_assert_eq!(&parse(&expr.text(" ", !double)), &selector, "spelling does not matter");
    }

    #[test]
    fn matches_as_the_expression_says(expr in expr(), sets in proptest::collection::vec(label_set(), 1..8)) {
        let selector = parse(&expr.text("", true));
        let canonical = parse(&selector.to_string());
        for set in &sets {
            prop_assert_eq!(selector.matches(set), expr.holds(set), "{} on {:?}", selector, set);
            prop_assert_eq!(canonical.matches(set), selector.matches(set));
        }
    }

    #[test]
    fn what_matches_fulfils_the_requirements(expr in expr(), set in label_set()) {
        let selector = parse(&expr.text("", true));
        if selector.matches(&set) {
            let requirements = selector.requirements();
            prop_assert!(!requirements.impossible);
            for (key, requirement) in requirements.labels {
                let label = set.get(key).map(String::as_str);
                prop_assert!(match requirement {
                    LabelCondition::Present => label.is_some(),
                    LabelCondition::Absent => label.is_none(),
                    LabelCondition::OneOf(values) => label.is_some_and(|label| values.contains(&label)),
                }, "{} on {:?}", selector, set);
            }
        }
    }

    #[test]
    fn a_prefix_moves_every_key(expr in expr(), set in label_set()) {
        let selector = parse(&expr.text("", true));
        let moved: BTreeMap<_, _> = set.iter().map(|(k, v)| (format!("p.{k}"), v.clone())).collect();
        prop_assert_eq!(selector.prefixed("p.").matches(&moved), selector.matches(&set));
    }

    #[test]
    fn any_text_is_parsed_or_refused_in_place(text in "[ a(){}!=&|,'\"\ninhas\t]{0,40}|\\PC{0,40}") {
        match Selector::parse(&text) {
            Ok(selector) => prop_assert_eq!(&parse(&selector.to_string()), &selector),
            Err(error) => prop_assert!(text.is_char_boundary(error.offset)),
        }
    }
}
