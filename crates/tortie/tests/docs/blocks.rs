//! Parses the fenced code blocks of a page and the commands in them.

/// How a block is processed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockLanguage {
    /// A script.
    Sh,
    /// Commands with a prompt, and their output.
    Console,
    Other,
}

#[derive(Clone, Debug)]
pub struct CodeBlock {
    pub language: BlockLanguage,
    /// The number of the line after the fence, from 1.
    pub line: usize,
    pub lines: Vec<String>,
    /// The reason why the block is not run.
    pub not_run: Option<String>,
}

impl CodeBlock {
    pub fn is_run(&self) -> bool {
        self.language != BlockLanguage::Other && self.not_run.is_none()
    }
}

pub fn of(page: &str) -> Vec<CodeBlock> {
    let mut blocks: Vec<CodeBlock> = Vec::new();
    let mut open: Option<(usize, CodeBlock)> = None;
    let mut reason: Option<String> = None;
    for (index, line) in page.lines().enumerate() {
        if let Some((indent, block)) = &mut open {
            match line.trim() == "```" {
                true => blocks.extend(open.take().map(|(_, block)| block)),
                // Lines of a block in a list are indented as far as its fence.
                false => {
                    let depth = line.len() - line.trim_start().len();
                    block.lines.push(line[depth.min(*indent)..].to_owned());
                }
            }
        } else if let Some(info) = line.trim_start().strip_prefix("```") {
            let language = match info.trim() {
                "sh" | "bash" => BlockLanguage::Sh,
                "console" => BlockLanguage::Console,
                _ => BlockLanguage::Other,
            };
            let not_run = reason.take();
            let indent = line.len() - line.trim_start().len();
            open = Some((indent, CodeBlock { language, line: index + 2, lines: Vec::new(), not_run }));
        } else if let Some(comment) = line.trim().strip_prefix("<!-- not run: ") {
            reason = comment.strip_suffix(" -->").map(str::to_owned);
            assert!(reason.is_some(), "line {}: a comment of several lines: {line}", index + 1);
        } else if !line.trim().is_empty() {
            reason = None;
        }
    }
    assert!(open.is_none(), "a block is not closed: {open:?}");
    blocks
}

/// One command or script to run.
#[derive(Clone, Debug)]
pub struct DocStep {
    pub command: String,
    /// The expected output; `None` if the page does not show it.
    pub shown: Option<Vec<String>>,
    /// The range of lines of the page that show the output: first, and one past the last, from 0.
    pub place: (usize, usize),
    /// A script stops at its first failure and is not retried.
    pub is_script: bool,
}

pub fn steps(block: &CodeBlock) -> Vec<DocStep> {
    let first = block.line - 1;
    if block.language == BlockLanguage::Sh {
        let place = (first, first + block.lines.len());
        return vec![DocStep { command: block.lines.join("\n"), shown: None, place, is_script: true }];
    }
    let mut steps: Vec<DocStep> = Vec::new();
    for (index, line) in block.lines.iter().enumerate() {
        let at = first + index;
        if let Some(command) = line.strip_prefix("$ ") {
            let place = (at + 1, at + 1);
            steps.push(DocStep { command: command.to_owned(), shown: None, place, is_script: false });
            continue;
        }
        let step = steps.last_mut().unwrap_or_else(|| panic!("line {}: no command before {line:?}", at + 1));
        match line.strip_prefix("> ").or((line == ">").then_some("")) {
            Some(more) if step.shown.is_none() => {
                step.command += "\n";
                step.command += more;
                step.place = (at + 1, at + 1);
            }
            _ => {
                step.shown.get_or_insert_default().push(line.clone());
                step.place.1 = at + 1;
            }
        }
    }
    steps
}

#[test]
fn blocks_and_their_steps() {
    let page = "\
# Title

```sh
one
```

<!-- not run: it needs two machines -->

```console
$ far away
```

```console
$ first \\
> --more
output

$ second
```
";
    let blocks = of(page);
    assert_eq!(blocks.len(), 3);
    assert_eq!(blocks[0].line, 4);
    assert_eq!(blocks[1].not_run.as_deref(), Some("it needs two machines"));
    assert!(blocks[2].is_run());
    let steps = steps(&blocks[2]);
    assert_eq!(steps[0].command, "first \\\n--more");
    assert_eq!(steps[0].shown, Some(vec!["output".to_owned(), String::new()]));
    assert_eq!(steps[1].shown, None);
    let lines: Vec<&str> = page.lines().collect();
    assert_eq!(lines[steps[0].place.0..steps[0].place.1], ["output", ""]);
}
