//! Parses any text as a selector. The canonical form of a selector must be a fixed point.
#![no_main]

use libfuzzer_sys::fuzz_target;
use std::collections::BTreeMap;
use tortie_model::selector::{LabelCondition, Selector};

fuzz_target!(|text: &str| {
    let selector = match Selector::parse(text) {
        Ok(selector) => selector,
        Err(error) => {
            assert!(text.is_char_boundary(error.offset), "{error}");
            return;
        }
    };
    let printed = selector.to_string();
    let again = Selector::parse(&printed).expect("canonical text parses");
    assert_eq!(again, selector);
    assert_eq!(again.to_string(), printed);
    assert_eq!(selector.id().len(), 40);

    // Take labels from the text itself, so that values sometimes match the selector.
    let words: Vec<&str> =
        text.split([' ', '"', '\'', '(', ')', ',']).filter(|word| !word.is_empty()).collect();
    let labels: BTreeMap<&str, &str> = words.windows(2).map(|pair| (pair[0], pair[1])).collect();
    let matched = selector.matches(&labels);
    assert_eq!(again.matches(&labels), matched);
    let requirements = selector.requirements();
    if matched {
        assert!(!requirements.impossible);
        for (key, requirement) in requirements.labels {
            let label = labels.get(key);
            assert!(match requirement {
                LabelCondition::Present => label.is_some(),
                LabelCondition::Absent => label.is_none(),
                LabelCondition::OneOf(values) => label.is_some_and(|label| values.contains(label)),
            });
        }
    }
    let moved: BTreeMap<String, &str> =
        labels.iter().map(|(key, value)| (format!("p.{key}"), *value)).collect();
    assert_eq!(selector.prefixed("p.").matches(&moved), matched);
});
