use super::*;
use serde_json::json;

fn one(text: &str) -> Value {
    let mut all = documents(text.as_bytes()).unwrap_or_else(|e| panic!("{text}: {e}"));
    assert_eq!(all.len(), 1, "{text}");
    all.remove(0)
}

fn error(text: &str) -> CodecError {
    match documents(text.as_bytes()) {
        Err(error) => error,
        Ok(values) => panic!("{text}: {values:?}"),
    }
}

#[test]
fn yaml_scalars_keep_their_types() {
    let value = one(
        "int: 1\nbig: 18446744073709551615\nneg: -4\nfloat: 1.5\nyes: true\nword: web\nquoted: \"1\"\nsingle: '012'\n\
         nothing: null\ntilde: ~\nempty:\nexp: 1e3\ncidr: 10.0.0.0/8\nver: v3.2\ndate: 2026-03-01\nrange: \"1000:2000\"\n\
         text: |\n  a\n  b\nfolded: >-\n  a\n  b\nlist:\n- 1\n- b\nflow: {a: [1, x]}\n",
    );
    assert_eq!(
        value,
        json!({
            "int": 1, "big": 18446744073709551615u64, "neg": -4, "float": 1.5, "yes": true, "word": "web", "quoted": "1",
            "single": "012", "nothing": null, "tilde": null, "empty": null, "exp": 1000.0, "cidr": "10.0.0.0/8",
            "ver": "v3.2", "date": "2026-03-01", "range": "1000:2000", "text": "a\nb\n", "folded": "a b",
            "list": [1, "b"], "flow": {"a": [1, "x"]}
        })
    );
}

#[test]
fn old_spellings_of_booleans_and_octals_are_read() {
    assert_eq!(one("a: yes\nb: off\nc: On\nd: 010\n"), json!({"a": true, "b": false, "c": true, "d": 8}));
}

#[test]
fn numbers_as_keys_become_text() {
    assert_eq!(one("labels:\n  1: one\n  true: yep\n"), json!({"labels": {"1": "one", "true": "yep"}}));
}

#[test]
fn anchors_and_merges() {
    assert_eq!(
        one("a: &x {k: 1}\nb: *x\nc:\n  <<: *x\n  l: 2\n"),
        json!({"a": {"k": 1}, "b": {"k": 1}, "c": {"k": 1, "l": 2}})
    );
}

#[test]
fn documents_arrays_and_lists_come_apart_in_order() {
    let text = "---\nkind: A\n---\n- kind: B\n- kind: C\n--- # note\n---\napiVersion: projectcalico.org/v3\nkind: TierList\n\
                items:\n- metadata: {name: t1}\n- kind: Tier\n  metadata: {name: t2}\n";
    let all = documents(text.as_bytes()).unwrap();
    let kinds: Vec<&str> = all.iter().filter_map(|v| v["kind"].as_str()).collect();
    assert_eq!(kinds, ["A", "B", "C", "Tier", "Tier"]);
    assert_eq!(
        all[3],
        json!({"metadata": {"name": "t1"}, "kind": "Tier", "apiVersion": "projectcalico.org/v3"})
    );
    assert_eq!(documents(b"").unwrap(), Vec::<Value>::new());
    assert_eq!(documents(b"# nothing\n---\n---\n").unwrap(), Vec::<Value>::new());
    assert_eq!(documents(b"[{\"kind\": \"A\"}, {\"kind\": \"B\"}]").unwrap().len(), 2);
    assert_eq!(
        documents(b"apiVersion: projectcalico.org/v3\nkind: TierList\n").unwrap(),
        Vec::<Value>::new()
    );
    // Nested lists are flattened as well: an item that is itself a list would be flattened when it is printed
    // and read again.
    let text = "apiVersion: projectcalico.org/v3\nkind: TierList\nitems:\n- kind: TierList\n  items: [{metadata: {name: t1}}]\n\
                - kind: TierList\n  item: {}\n- metadata: {name: t2}\n";
    let names = |all: Vec<Value>| all.iter().map(|v| v["metadata"]["name"].clone()).collect::<Vec<_>>();
    assert_eq!(names(documents(text.as_bytes()).unwrap()), ["t1", "t2"]);
}

#[test]
fn windows_line_ends_and_bom_are_accepted() {
    assert_eq!(one("\u{feff}a: 1\r\nb: x\r\n"), json!({"a": 1, "b": "x"}));
}

#[test]
fn separators_inside_text_do_not_cut() {
    assert_eq!(one("a: |\n  x\n  ---\n  y\n"), json!({"a": "x\n---\ny\n"}));
}

#[test]
fn errors_say_where() {
    let CodecError::Syntax { line, column, message } = error("a: 1\n---\nb: [1,\nc: }\n") else { panic!() };
    assert!(line >= 3 && column >= 1, "{line}:{column} {message}");
    let CodecError::Syntax { line, message, .. } = error("kind: A\n---\nx: 1\nx: 2\n") else { panic!() };
    assert_eq!(line, 4, "{message}");
    assert!(message.contains("duplicate") && message.contains('x'), "{message}");
    let CodecError::Syntax { line, message, .. } = error("{\"a\": 1,\n \"a\": 2}") else { panic!() };
    assert_eq!((line, message.as_str()), (2, "duplicate key \"a\""));
    assert_eq!(error("---\njust text\n"), CodecError::NotAnObject { line: 1, found: "a string" });
    assert_eq!(
        error("apiVersion: projectcalico.org/v3\nkind: TierList\nitems: {}\n"),
        CodecError::NotAnObject { line: 1, found: "items that are not a list" }
    );
    assert_eq!(
        error("apiVersion: projectcalico.org/v3\nkind: TierList\nitems: [5]\n"),
        CodecError::NotAnObject { line: 1, found: "a list item that is not an object" }
    );
    assert!(error("a:\n\tb: 1\n").to_string().starts_with("line 2, column 2: tabs"));
    assert!(error("a: .inf\n").to_string().contains("non-finite"));
    assert_eq!(documents(b"a: \xff"), Err(CodecError::NotText { offset: 3 }));
}

#[test]
fn too_large_or_deep_documents_are_rejected() {
    let huge = format!("a: 1\n---\nb: {}\n", "x".repeat(MAX_DOCUMENT_BYTES));
    assert_eq!(error(&huge), CodecError::TooLarge { document: 2 });
    assert_eq!(error(&huge).to_string(), "document 2 is larger than 10 MB");
    let large = format!("b: {}\n", "x".repeat(MAX_DOCUMENT_BYTES - 100));
    assert_eq!(documents(large.as_bytes()).unwrap().len(), 1);
    for open in ["[", "{\"a\":", "{a: ", "- ", "? "] {
        let message = error(&open.repeat(100_000)).to_string();
        assert!(message.ends_with("nested more than 40 levels deep"), "{open}: {message}");
    }
    let nested: String = (0..2000).map(|depth| format!("{}a:\n", " ".repeat(depth))).collect();
    assert!(matches!(error(&nested), CodecError::Syntax { .. }));
}

#[test]
fn alias_bombs_are_refused() {
    let mut bomb = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
    for i in 1..12 {
        let previous = format!("*a{}, ", i - 1).repeat(10);
        bomb.push_str(&format!("a{i}: &a{i} [{}]\n", previous.trim_end_matches(", ")));
    }
    assert!(matches!(error(&bomb), CodecError::Syntax { .. }));
    assert!(matches!(error("a: &a [*a]\n"), CodecError::Syntax { .. }));
}

#[test]
fn large_lists_are_read() {
    let items: String = (0..20_000).map(|i| format!("- 10.{}.{}.0/24\n", i / 256, i % 256)).collect();
    assert_eq!(one(&format!("nets:\n{items}"))["nets"].as_array().unwrap().len(), 20_000);
}

#[test]
fn yaml_out_looks_like_go_writes_it() {
    let value = json!({
        "spec": {"nets": ["10.0.0.0/8", "fd00::/8"], "empty": {}, "none": [], "on": "on", "rules": [{"b": 1, "a": [1, [2, 3]]}]},
        "kind": "X",
        "text": "a\nb\n",
        "open": "a\n\n  b",
        "order": 1000000,
    });
    let expected = "kind: X\nopen: |-\n  a\n\n    b\norder: 1000000\nspec:\n  empty: {}\n  nets:\n  - 10.0.0.0/8\n  - fd00::/8\n  \
                    none: []\n  \"on\": \"on\"\n  rules:\n  - a:\n    - 1\n    - - 2\n      - 3\n    b: 1\ntext: |\n  a\n  b\n";
    assert_eq!(to_yaml(&value), expected);
    assert_eq!(one(expected), value);
}

#[test]
fn strings_that_old_readers_mistake_are_quoted() {
    for text in [
        "yes",
        "no",
        "on",
        "off",
        "y",
        "n",
        "Y",
        "NO",
        "true",
        "False",
        "null",
        "~",
        "",
        "012",
        "0o17",
        "0x1F",
        "1e3",
        "1_000",
        "1.5",
        ".5",
        "-1",
        "+1",
        "1.",
        "190:20:30",
        "2026-03-01",
        "2026-03-01T10:20:30Z",
        ".inf",
        "-.INF",
        ".nan",
        "<<",
        "=",
        "0b11",
        "NaN",
    ] {
        assert_eq!(to_yaml(&json!(text)), format!("\"{text}\"\n"), "{text}");
    }
    for text in [
        "web",
        "10.0.0.0/8",
        "10.65.3.4",
        "fd00::1",
        "v3.32",
        "all()",
        "role == \"db\"",
        "a b",
        "1m30s",
        "tcp:80",
    ] {
        assert_eq!(to_yaml(&json!(text)), format!("{text}\n"), "{text}");
    }
    for text in [
        "a: b",
        "a #b",
        "- a",
        "*",
        "!has(x)",
        "a in {\"b\"}",
        " a",
        "a ",
        "a:",
        "'a'",
        "it's, so",
        "@x",
        "%x",
        "::/0",
    ] {
        assert_eq!(to_yaml(&json!(text)), format!("'{}'\n", text.replace('\'', "''")), "{text}");
    }
    assert_eq!(to_yaml(&json!("tab\there\u{7}")), "\"tab\\there\\u0007\"\n");
}

proptest::proptest! {
    #[test]
    fn yaml_out_reads_back(value in tree()) {
        let document = json!({ "document": value });
        let yaml = to_yaml(&document);
        proptest::prop_assert_eq!(documents(yaml.as_bytes()).map_err(|e| format!("{e}\n{yaml}")), Ok(vec![document]));
    }

    #[test]
    fn any_text_is_read_or_refused(text in "[ \\n\\t:,\\[\\]{}&*!|>'\"%@`#a-c0-2~<=?.-]{0,60}") {
        let _ = documents(text.as_bytes());
    }
}

fn tree() -> impl proptest::strategy::Strategy<Value = Value> {
    use proptest::prelude::*;
    let text = prop_oneof!["[ -~\\n]{0,12}", "\\PC{0,8}", "[0-9:.xeobTZ_+-]{1,8}", any::<String>()];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        (-1e9..1e9f64).prop_map(Value::from),
        text.clone().prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 40, 5, move |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            proptest::collection::vec((text.clone(), inner), 0..5)
                .prop_map(|fields| Value::Object(fields.into_iter().collect())),
        ]
    })
}

#[test]
fn long_keys_are_read_back_wherever_they_stand() {
    let long = "k".repeat(200);
    let value = json!({"a": {long.as_str(): 1, "b": [{long.as_str(): {"c": [1]}}]}, long.as_str(): ["x"]});
    assert_eq!(one(&to_yaml(&value)), value);
}
