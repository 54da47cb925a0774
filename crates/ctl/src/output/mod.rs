//! Prints the results of `get`.

pub mod columns;
pub mod go;
pub mod table;
pub mod template;

use columns::{CellFacts, ColumnVisibility, KindColumns, OutputColumn};
use serde_json::Value;
use tortie_model::{Kind, Resource, ResourceList, codec};

/// The result of one query of a `get`.
#[derive(Clone, Debug)]
pub enum GetResult {
    One(Box<Resource>),
    Listed(ResourceList),
}

impl GetResult {
    pub fn kind(&self) -> Kind {
        match self {
            GetResult::One(resource) => resource.kind(),
            GetResult::Listed(list) => list.kind,
        }
    }

    pub fn to_value(&self) -> Value {
        match self {
            GetResult::One(resource) => resource.to_value(),
            GetResult::Listed(list) => list.to_value(),
        }
    }

    pub fn items(&self) -> Vec<&Resource> {
        match self {
            GetResult::One(resource) => vec![resource.as_ref()],
            GetResult::Listed(list) => list.items.iter().collect(),
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum OutputError {
    #[error("unrecognized output format '{0}'")]
    UnknownFormat(String),
    #[error("need to specify {0}")]
    MissingArgument(&'static str),
    #[error("unknown heading {heading}, valid values are: {}", .valid.join(", "))]
    UnknownHeading { heading: String, valid: Vec<&'static str> },
    #[error("--watch prints tables, yaml or json; a go-template needs the whole result")]
    WatchTemplate,
    #[error("{path}: {source}")]
    TemplateFile { path: String, source: std::io::Error },
    #[error("template: get: unexpected {{{{end}}}}")]
    UnexpectedEnd,
    #[error("template: get: unexpected EOF, {{{{end}}}} missing {0} time(s)")]
    MissingEnd(usize),
    #[error(transparent)]
    Template(#[from] gotmpl::TemplateError),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OutputFormat {
    Ps,
    Wide,
    CustomColumns(Vec<String>),
    Yaml,
    Json,
    Template(String),
    TemplateFile(String),
}

impl OutputFormat {
    pub fn parse(text: &str) -> Result<OutputFormat, OutputError> {
        let (name, value) = text.split_once('=').unwrap_or((text, ""));
        match (name, value) {
            _ if text == "ps" => Ok(OutputFormat::Ps),
            _ if text == "wide" => Ok(OutputFormat::Wide),
            _ if text == "yaml" || text == "yml" => Ok(OutputFormat::Yaml),
            _ if text == "json" => Ok(OutputFormat::Json),
            ("custom-columns", "") => Err(OutputError::MissingArgument("at least one column")),
            ("custom-columns", columns) => {
                Ok(OutputFormat::CustomColumns(columns.split(',').map(str::to_owned).collect()))
            }
            ("go-template", "") => Err(OutputError::MissingArgument("a template")),
            ("go-template", template) => Ok(OutputFormat::Template(template.to_owned())),
            ("go-template-file", "") => Err(OutputError::MissingArgument("a template file")),
            ("go-template-file", file) => Ok(OutputFormat::TemplateFile(file.to_owned())),
            _ => Err(OutputError::UnknownFormat(text.to_owned())),
        }
    }
}

/// The columns of a table for one kind.
pub struct TableLayout {
    columns: Vec<&'static OutputColumn>,
}

impl TableLayout {
    /// Selects the columns. Fails on a heading that the kind does not have.
    pub fn new(kind: Kind, format: &OutputFormat, with_namespace: bool) -> Result<TableLayout, OutputError> {
        let columns = KindColumns::of(kind);
        let mut headings: Vec<&str> = match format {
            OutputFormat::Wide => columns.headings(ColumnVisibility::Wide),
            OutputFormat::CustomColumns(headings) => headings.iter().map(String::as_str).collect(),
            _ => columns.headings(ColumnVisibility::Always),
        };
        if with_namespace && kind.is_namespaced() {
            headings.insert(0, "NAMESPACE");
        }
        let mut selected = Vec::new();
        for heading in headings {
            selected.push(columns.find(heading).ok_or_else(|| OutputError::UnknownHeading {
                heading: heading.to_owned(),
                valid: columns.headings(ColumnVisibility::OnRequest),
            })?);
        }
        Ok(TableLayout { columns: selected })
    }

    pub fn headings(&self) -> Vec<String> {
        self.columns.iter().map(|c| c.heading.to_owned()).collect()
    }

    pub fn row(&self, resource: &Resource, facts: &CellFacts) -> Vec<String> {
        let object = resource.to_value();
        self.columns.iter().map(|column| column.cell(&object, facts)).collect()
    }
}

/// Renders all results as text.
pub fn render(
    found: &[GetResult],
    format: &OutputFormat,
    with_namespace: bool,
    facts: &CellFacts,
) -> Result<String, OutputError> {
    match format {
        OutputFormat::Yaml => Ok(one_or_all(found).map(|value| codec::to_yaml(&value)).unwrap_or_default()),
        OutputFormat::Json => Ok(one_or_all(found).map(|value| codec::to_json(&value)).unwrap_or_default()),
        OutputFormat::Template(text) => template::render(text, found, facts),
        OutputFormat::TemplateFile(file) => {
            let text = std::fs::read_to_string(file)
                .map_err(|source| OutputError::TemplateFile { path: file.clone(), source })?;
            template::render(&text, found, facts)
        }
        OutputFormat::Ps | OutputFormat::Wide | OutputFormat::CustomColumns(_) => {
            let mut text = String::new();
            for found in found {
                // calicoctl does not prepend the namespace to custom columns.
                let with_namespace = with_namespace && !matches!(format, OutputFormat::CustomColumns(_));
                let layout = TableLayout::new(found.kind(), format, with_namespace)?;
                let mut rows = vec![layout.headings()];
                rows.extend(found.items().into_iter().map(|resource| layout.row(resource, facts)));
                text.push_str(&table::layout(&rows));
                text.push('\n');
            }
            Ok(text)
        }
    }
}

/// Returns a single result as it is, several as an array.
fn one_or_all(found: &[GetResult]) -> Option<Value> {
    match found {
        [] => None,
        [only] => Some(only.to_value()),
        several => Some(Value::Array(several.iter().map(GetResult::to_value).collect())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FACTS: CellFacts = CellFacts { global_as_number: 64512 };

    #[test]
    fn formats_parse() {
        for (text, format) in [
            ("yml", OutputFormat::Yaml),
            ("custom-columns=A,B", OutputFormat::CustomColumns(vec!["A".into(), "B".into()])),
            ("go-template={{.x=1}}", OutputFormat::Template("{{.x=1}}".into())),
        ] {
            assert_eq!(OutputFormat::parse(text).unwrap(), format);
        }
        for (text, message) in [
            ("xml", "unrecognized output format 'xml'"),
            ("yaml=x", "unrecognized output format 'yaml=x'"),
            ("custom-columns", "need to specify at least one column"),
            ("custom-columns=", "need to specify at least one column"),
            ("go-template=", "need to specify a template"),
            ("go-template-file", "need to specify a template file"),
        ] {
            assert_eq!(OutputFormat::parse(text).unwrap_err().to_string(), message);
        }
    }

    fn set(namespace: &str, name: &str) -> Resource {
        let mut resource = Resource::new(Kind::NetworkSet);
        resource.metadata_mut().name = name.into();
        resource.metadata_mut().namespace = namespace.into();
        resource
    }

    #[test]
    fn each_result_table_ends_with_a_blank_line() {
        let list = ResourceList {
            kind: Kind::NetworkSet,
            resource_version: "9".into(),
            items: vec![set("shop", "a"), set("store", "bb")],
        };
        let found = [GetResult::Listed(list), GetResult::One(Box::new(Resource::new(Kind::Tier)))];
        assert_eq!(
            render(&found, &OutputFormat::Ps, true, &FACTS).unwrap(),
            "NAMESPACE   NAME   \nshop        a      \nstore       bb     \n\nNAME   ORDER   \n       <nil>   \n\n"
        );
    }

    #[test]
    fn unknown_headings_are_rejected_with_the_known_ones() {
        let found = [GetResult::One(Box::new(set("shop", "a")))];
        let format = OutputFormat::CustomColumns(vec!["NAME".into(), "COLOUR".into()]);
        assert_eq!(
            render(&found, &format, false, &FACTS).unwrap_err().to_string(),
            "unknown heading COLOUR, valid values are: NAME, NAMESPACE, NETS"
        );
    }

    #[test]
    fn one_result_prints_bare_several_as_an_array() {
        let one = [GetResult::One(Box::new(set("shop", "a")))];
        assert!(
            render(&one, &OutputFormat::Json, false, &FACTS)
                .unwrap()
                .starts_with("{\n  \"kind\": \"NetworkSet\"")
        );
        let two = [one[0].clone(), one[0].clone()];
        assert!(
            render(&two, &OutputFormat::Json, false, &FACTS).unwrap().starts_with("[\n  {\n    \"kind\"")
        );
        assert_eq!(render(&[], &OutputFormat::Yaml, false, &FACTS).unwrap(), "");
    }
}
