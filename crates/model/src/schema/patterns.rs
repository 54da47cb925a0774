//! Regular expressions (RE2) for the syntax of string fields: names, addresses, numbers and selectors.
//! Patterns do not count against the CEL cost budget of Kubernetes, so every rule about a single field is
//! checked here if possible.

use crate::scalar::Protocol;
use crate::selector::{MAX_KEY_BYTES, MAX_NESTING};

const OCTET: &str = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])";
const GROUP: &str = "[0-9a-fA-F]{1,4}";
const LABEL: &str = "[a-z0-9](?:[-a-z0-9]*[a-z0-9])?";
/// The characters of a Kubernetes label value or name: up to 63.
const LABEL_TEXT: &str = "[A-Za-z0-9](?:[-_.A-Za-z0-9]{0,61}[A-Za-z0-9])?";
/// Port name. `maxLength` limits it to 15 characters.
const PORT_NAME: &str = "(?:[0-9]+-)*[0-9]*[a-z][a-z0-9]*(?:-[a-z0-9]+)*";
const V4_BITS: &str = "(?:[0-9]|[12][0-9]|3[0-2])";
const V6_BITS: &str = "(?:[0-9]|[1-9][0-9]|1[01][0-9]|12[0-8])";

/// Anchors the pattern so that it matches the whole text.
pub(crate) fn whole(pattern: &str) -> String {
    format!("^(?:{pattern})$")
}

/// Anchors the pattern so that it matches the whole text or the empty string.
pub(crate) fn optional(pattern: &str) -> String {
    format!("^(?:{pattern})?$")
}

/// Returns a pattern for decimal numbers from 1 to `max`, without leading zeros.
pub(crate) fn positive(max: u64) -> String {
    let digits = max.to_string();
    let shorter = match digits.len() {
        1 => Vec::new(),
        2 => vec!["[1-9]".to_owned()],
        3 => vec!["[1-9][0-9]?".to_owned()],
        len => vec![format!("[1-9][0-9]{{0,{}}}", len - 2)],
    };
    let alternatives: Vec<String> =
        shorter.into_iter().chain(of_same_length(digits.as_bytes(), b'1')).collect();
    format!("(?:{})", alternatives.join("|"))
}

/// Returns patterns for numbers with the same number of digits as `max` that do not exceed it.
fn of_same_length(max: &[u8], first: u8) -> Vec<String> {
    let Some((&digit, rest)) = max.split_first() else { return Vec::new() };
    if rest.is_empty() {
        return vec![digit_range(first, digit)];
    }
    let mut found = Vec::new();
    if digit > first {
        found.push(format!("{}{}", digit_range(first, digit - 1), "[0-9]".repeat(rest.len())));
    }
    let same = of_same_length(rest, b'0');
    found.push(match same.as_slice() {
        [only] => format!("{}{only}", char::from(digit)),
        several => format!("{}(?:{})", char::from(digit), several.join("|")),
    });
    found
}

fn digit_range(first: u8, last: u8) -> String {
    if first == last {
        return char::from(first).to_string();
    }
    format!("[{}-{}]", char::from(first), char::from(last))
}

/// Returns a pattern for decimal numbers up to `max`, with optional leading zeros.
fn decimal(max: u64) -> String {
    format!("0*(?:0|{})", positive(max))
}

pub(crate) fn ipv4() -> String {
    format!(r"(?:{OCTET}\.){{3}}{OCTET}")
}

pub(crate) fn ipv6() -> String {
    let v4 = ipv4();
    let mut forms = vec![format!("(?:{GROUP}:){{7}}{GROUP}"), format!("(?:{GROUP}:){{6}}{v4}")];
    // `::` replaces at least one group.
    for before in 0..=7 {
        let head = match before {
            0 => "::".to_owned(),
            _ => format!("{GROUP}(?::{GROUP}){{{}}}::", before - 1),
        };
        let groups = (before < 7).then(|| format!("{GROUP}(?::{GROUP}){{0,{}}}", 6 - before));
        let embedded = (before < 6).then(|| format!("(?:{GROUP}:){{0,{}}}{v4}", 5 - before));
        let tails: Vec<String> = groups.into_iter().chain(embedded).collect();
        forms.push(if tails.is_empty() { head } else { format!("{head}(?:{})?", tails.join("|")) });
    }
    format!("(?:{})", forms.join("|"))
}

pub(crate) fn address() -> String {
    format!("{}|{}", ipv4(), ipv6())
}

pub(crate) fn ipv4_network() -> String {
    format!("{}/{V4_BITS}", ipv4())
}

pub(crate) fn ipv6_network() -> String {
    format!("{}/{V6_BITS}", ipv6())
}

pub(crate) fn network() -> String {
    format!("{}|{}", ipv4_network(), ipv6_network())
}

/// Returns a pattern for networks other than all addresses of a family.
pub(crate) fn part_network() -> String {
    format!("{}/(?:[1-9]|[12][0-9]|3[0-2])|{}/(?:[1-9][0-9]?|1[01][0-9]|12[0-8])", ipv4(), ipv6())
}

pub(crate) fn network_or_address() -> String {
    format!("{}(?:/{V4_BITS})?|{}(?:/{V6_BITS})?", ipv4(), ipv6())
}

pub(crate) fn ipv4_network_or_address() -> String {
    format!("{}(?:/{V4_BITS})?", ipv4())
}

pub(crate) fn ipv6_network_or_address() -> String {
    format!("{}(?:/{V6_BITS})?", ipv6())
}

/// Returns a pattern for an address with an optional port.
pub(crate) fn peer_address() -> String {
    let v6 = ipv6();
    let port = format!("0*{}", positive(65535));
    format!(r"{}(?::{port})?|{v6}|\[{v6}\]:{port}", ipv4())
}

/// Returns a pattern for labels joined by dots. `maxLength` limits it to 253 characters.
pub(crate) fn dotted_name() -> String {
    format!(r"{LABEL}(?:\.{LABEL})*")
}

/// Returns a pattern for a label of up to `max` characters.
pub(crate) fn label(max: usize) -> String {
    format!("[a-z0-9](?:[-a-z0-9]{{0,{}}}[a-z0-9])?", max - 2)
}

/// Returns a pattern for a name with at most one dot.
pub(crate) fn policy_name() -> String {
    format!(r"{LABEL}(?:\.{LABEL})?")
}

pub(crate) fn label_value() -> String {
    optional(LABEL_TEXT)
}

/// Returns a pattern for a Kubernetes qualified name. `QUALIFIED_LENGTHS` limits the length of its prefix.
pub(crate) fn qualified_name() -> String {
    format!("(?:{}/)?{LABEL_TEXT}", dotted_name())
}

/// Returns a pattern for a qualified name that may also contain upper-case letters.
pub(crate) fn annotation_key() -> String {
    let label = "[A-Za-z0-9](?:[-A-Za-z0-9]*[A-Za-z0-9])?";
    format!(r"(?:{label}(?:\.{label})*/)?{LABEL_TEXT}")
}

pub(crate) const QUALIFIED_LENGTHS: &str = "^(?:[^/]{1,253}/)?[^/]{1,63}$";

/// An interface name, or `*` for all interfaces.
pub(crate) const INTERFACE: &str = r"\*|[a-zA-Z0-9_.-]{1,15}";
/// An interface name in which `*` matches any text; `*` alone is not allowed.
pub(crate) const INTERFACE_GLOB: &str = r"[a-zA-Z0-9_.-][a-zA-Z0-9_.*-]{0,14}|\*[a-zA-Z0-9_.*-]{1,14}";
/// The name of an endpoint's port.
pub(crate) const ENDPOINT_PORT_NAME: &str = "[a-zA-Z0-9_.-]{1,128}";
pub(crate) const DSCP: &str = "DF|EF|AF[1-4][1-3]|CS[0-6]|[0-9]|[1-5][0-9]|6[0-3]";
/// The path of a URL without query and fragment.
pub(crate) const URL_PATH: &str = "/[^?# ]*";

/// Returns a pattern for a BGP community: two 16-bit numbers or three 32-bit numbers.
pub(crate) fn community() -> String {
    let short = decimal(65535);
    let long = decimal(u32::MAX.into());
    format!("{short}:{short}|{long}:{long}:{long}")
}

/// Returns a pattern for a port number, range or name. A pattern cannot check that the range does not end
/// before it begins.
pub(crate) fn port() -> String {
    format!("{PORT_NAME}|{}", port_numbers())
}

/// Returns a pattern for a port number or range.
pub(crate) fn port_numbers() -> String {
    let number = positive(65535);
    format!("{number}(?::{number})?")
}

/// Returns a pattern for the name of a port.
pub(crate) fn port_name() -> String {
    whole(PORT_NAME)
}

/// Returns a pattern for a port number or name.
pub(crate) fn single_port() -> String {
    format!("{PORT_NAME}|{}", positive(65535))
}

/// Returns a pattern for a protocol in a rule.
pub(crate) fn protocol() -> String {
    let names: Vec<&str> = Protocol::NAMES.iter().map(|(name, _)| *name).collect();
    format!("{}|{}", names.join("|"), positive(255))
}

/// Where `global()` is allowed in a selector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GlobalTerm {
    Nowhere,
    Alone,
}

/// Returns patterns that a text matches all of if it is a selector. A pattern cannot count parentheses, but
/// it can follow them to a fixed depth. The first pattern checks the sequence of terms and operators, the
/// second that it does not begin with an operator, and the third that parentheses match.
pub(crate) fn selector(global: GlobalTerm) -> [String; 3] {
    let key = format!("[a-zA-Z0-9_./-]{{1,{MAX_KEY_BYTES}}}");
    let text = r#"(?:'[^']*'|"[^"]*")"#;
    let values = format!(r"\{{[ \t]*(?:{text}[ \t]*,[ \t]*)*(?:{text}[ \t]*)?\}}");
    let comparison = r"(?:[ \t]*[!=]=|[ \t]+(?:contains|(?:start|end)s[ \t]*with))[ \t]*";
    let term = format!(
        r"(?:has\([ \t]*{key}[ \t]*\)|all\([ \t]*\)|{key}(?:{comparison}{text}|[ \t]+(?:not[ \t]*)?in[ \t]*{values}))"
    );
    let alone = match global {
        GlobalTerm::Nowhere => "",
        GlobalTerm::Alone => r"|[ \t]*global\([ \t]*\)[ \t]*",
    };
    let sequence = format!(r"^(?:[ \t]*|(?:(?:^|&&|\|\|)[ \t!(]*{term}[ \t)]*)+{alone})$");
    let plain = r#"[^()'"]|'[^']*'|"[^"]*""#;
    let mut nested = format!("(?:{plain})*");
    for _ in 0..MAX_NESTING {
        nested = format!(r"(?:{plain}|\({nested}\))*");
    }
    [sequence, r"^[ \t]*(?:[^ \t&|]|$)".to_owned(), format!("^{nested}$")]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FieldChecker;
    use crate::scalar::{Port, Protocol};
    use proptest::prelude::*;
    use proptest::sample::select;
    use regex::Regex;
    use std::net::{IpAddr, Ipv6Addr};
    use std::sync::LazyLock;

    fn compiled(pattern: &str) -> Regex {
        Regex::new(pattern).unwrap()
    }

    fn passes(check: impl Fn(&FieldChecker<'_>)) -> bool {
        FieldChecker::run(check).is_ok()
    }

    #[test]
    fn numbers_end_at_their_bound() {
        for max in [1, 7, 9, 10, 32, 99, 100, 128, 255, 65535] {
            let pattern = compiled(&whole(&positive(max)));
            for number in
                (0..300u64).chain([655, 999, 6553, 9999, 10_000, 60_000, 65_534, 65_535, 65_536, 99_999])
            {
                assert_eq!(
                    pattern.is_match(&number.to_string()),
                    (1..=max).contains(&number),
                    "{number} of {max}"
                );
            }
        }
        let pattern = compiled(&whole(&positive(u32::MAX.into())));
        assert!(pattern.is_match("4294967295") && pattern.is_match("999999999"));
        assert!(!pattern.is_match("4294967296") && !pattern.is_match("0") && !pattern.is_match("01"));
    }

    const WORDS: [&str; 32] = [
        "a",
        "app",
        "x.y/z-1_2",
        "has(",
        "all(",
        "global(",
        "(",
        ")",
        "!",
        "&&",
        "||",
        "&",
        "==",
        "!=",
        "=",
        " in ",
        "in",
        " not in ",
        "notin",
        " contains ",
        " starts with ",
        "startswith",
        " ends with ",
        "{",
        "}",
        ",",
        "'v'",
        "\"it's\"",
        "'",
        " ",
        "\t",
        "\n",
    ];

    /// Generates mostly valid expressions, composed by the rules of the grammar.
    fn expression() -> impl Strategy<Value = String> {
        let term = select(vec![
            "has(a)",
            "has( k8s.io/b )",
            "all()",
            "all( )",
            "a=='b'",
            "a != \"it's (\"",
            "a in {'b', \"c\",}",
            "a notin{}",
            "a not in { 'x' }",
            "b contains')'",
            "c startswith 'd'",
            "e ends with \"\"",
            "global()",
            "in in {'in'}",
        ])
        .prop_map(str::to_owned);
        term.prop_recursive(6, 24, 3, |inner| {
            prop_oneof![
                (inner.clone(), select(vec!["&&", " || ", "\t&& "]), inner.clone())
                    .prop_map(|(a, operator, b)| format!("{a}{operator}{b}")),
                inner.clone().prop_map(|inner| format!("({inner} )")),
                inner.prop_map(|inner| format!("! {inner}")),
            ]
        })
    }

    static ADDRESS: LazyLock<Regex> = LazyLock::new(|| compiled(&whole(&address())));
    static PORT: LazyLock<Regex> = LazyLock::new(|| compiled(&whole(&port())));
    static PROTOCOL: LazyLock<Regex> = LazyLock::new(|| compiled(&whole(&protocol())));
    static NAMES: LazyLock<[Regex; 5]> = LazyLock::new(|| {
        let forms = [&dotted_name(), &label(63), &qualified_name(), &annotation_key()]
            .map(|form| compiled(&whole(form)));
        let [dotted, label, qualified, annotation] = forms;
        [dotted, label, qualified, annotation, compiled(&label_value())]
    });
    static SELECTORS: LazyLock<[[Regex; 3]; 2]> = LazyLock::new(|| {
        [GlobalTerm::Nowhere, GlobalTerm::Alone]
            .map(|global| selector(global).map(|pattern| compiled(&pattern)))
    });

    fn agree_on_selector(text: &str) -> Result<(), TestCaseError> {
        let fits = |patterns: &[Regex; 3]| patterns.iter().all(|pattern| pattern.is_match(text));
        prop_assert_eq!(fits(&SELECTORS[0]), passes(|at| at.selector(text)), "{}", text);
        prop_assert_eq!(fits(&SELECTORS[1]), passes(|at| at.rule_namespace_selector(text)), "{}", text);
        Ok(())
    }

    #[test]
    fn selectors_nest_as_deep_as_patterns() {
        for depth in [MAX_NESTING - 1, MAX_NESTING, MAX_NESTING + 1] {
            for term in ["a == 'b'", "all()"] {
                let text = format!("{}{term}{}", "(".repeat(depth), ")".repeat(depth));
                agree_on_selector(&text).unwrap();
            }
        }
        for len in [MAX_KEY_BYTES, MAX_KEY_BYTES + 1] {
            agree_on_selector(&format!("has({})", "k".repeat(len))).unwrap();
        }
    }

    fn cut(text: String, at: usize, len: usize) -> String {
        let keep = |(index, c)| (index < at || index >= at + len).then_some(c);
        text.chars().enumerate().filter_map(keep).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1000))]

        #[test]
        fn selectors_are_what_the_parser_reads(text in expression(), at in 0usize..60, len in 0usize..3) {
            agree_on_selector(&text)?;
            agree_on_selector(&cut(text, at, len))?;
        }

        #[test]
        fn words_are_selectors_for_both(words in prop::collection::vec(select(&WORDS[..]), 0..8)) {
            agree_on_selector(&words.concat())?;
        }

        #[test]
        fn addresses_are_what_the_parser_reads(
            bits: u128,
            zeros in prop::collection::vec(0usize..8, 0..5),
            soup in "[0-9a-f:.]{0,12}|(:{0,2}[0-9a-f]{0,5}){0,9}|([0-9]{1,3}\\.){3}[0-9]{1,3}",
        ) {
            let mut groups = Ipv6Addr::from(bits).segments();
            zeros.into_iter().for_each(|zero| groups[zero] = 0);
            let v6 = Ipv6Addr::from(groups);
            let embedded = v6.to_string().rsplit_once(':').map(|(head, _)| format!("{head}:10.1.2.3"));
            let spelled = groups.map(|group| format!("{group:04X}")).join(":");
            for text in [Some(v6.to_string()), embedded, Some(spelled), Some(soup)].into_iter().flatten() {
                prop_assert_eq!(ADDRESS.is_match(&text), text.parse::<IpAddr>().is_ok(), "{}", text);
            }
        }

        #[test]
        fn ports_and_protocols_are_what_rules_accept(text in "[0-9]{0,6}|[0-9]{1,5}:[0-9]{1,5}|[a-z0-9-]{0,17}|[A-Za-z]{3,7}") {
            // Leading zeros are lost when a port is parsed and printed. A pattern cannot check the order of a
            // range.
            let port = text.parse::<Port>().ok().filter(|port| passes(|at| at.port(port)));
            let fits = PORT.is_match(&text) && text.len() <= 15;
            match port {
                Some(port) => prop_assert!(PORT.is_match(&port.to_string()), "{}", text),
                None => prop_assert!(!fits || text.contains(':'), "{}", text),
            }
            let protocol = Protocol::from(text.as_str());
            let fits = PROTOCOL.is_match(&protocol.to_string());
            prop_assert_eq!(fits, passes(|at| at.protocol(&protocol)), "{}", text);
        }

        #[test]
        fn names_are_what_kubernetes_accepts(text in "[a-zA-Z0-9._/-]{0,12}") {
            use crate::names::*;
            let [dotted, label, qualified, annotation, value] = &*NAMES;
            for (pattern, accepted) in [
                (dotted, check_dotted(&text).is_ok()),
                (label, check_label_form(&text).is_ok()),
                (qualified, check_qualified(&text).is_ok()),
                (annotation, check_annotation_key(&text).is_ok()),
                (value, check_label_value(&text).is_ok()),
            ] {
                prop_assert_eq!(pattern.is_match(&text), accepted, "{} {}", pattern, text);
            }
        }
    }
}
