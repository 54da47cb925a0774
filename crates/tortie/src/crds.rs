//! `tortie crds`: prints CRDs and JSON schemas generated from the resource types.

use clap::Args;
use serde_json::Value;
use std::fs;
use std::io::Write;
use std::path::PathBuf;
use tortie_ctl::CommandError;
use tortie_model::{Kind, codec, schema};

#[derive(Args, Debug)]
#[command(after_help = "Examples:
  tortie crds | kubectl apply --server-side -f -
  tortie crds --storage | kubectl apply --server-side -f -      for `tortie apiserver`
  tortie crds --admission | kubectl apply -f -                  what goes with them (deploy/webhooks)
  tortie crds --json-schema ippool")]
pub struct CrdsArgs {
    /// Print only this kind: its name, its plural or an alias, case-insensitive
    #[arg(value_name = "KIND")]
    kinds: Vec<String>,
    /// Write one file per kind into this directory
    #[arg(long, value_name = "DIR")]
    output_dir: Option<PathBuf>,
    /// Print JSON schemas instead of CRDs
    #[arg(long)]
    json_schema: bool,
    /// Print the CRDs in which `tortie apiserver` stores objects (crd.projectcalico.org/v1)
    #[arg(long, conflicts_with = "json_schema")]
    storage: bool,
    /// Print the admission policies that go with the CRDs: they set default tiers and types, and protect the built-in
    /// tiers. Mutating admission policies are v1 in Kubernetes 1.36 and later, and v1beta1, if enabled, in 1.34 and
    /// 1.35
    #[arg(long, value_name = "VERSION", value_parser = ["v1", "v1beta1"], num_args = 0..=1, default_missing_value = "v1",
        conflicts_with_all = ["json_schema", "storage", "kinds"])]
    admission: Option<String>,
}

pub fn print(args: &CrdsArgs, out: &mut dyn Write) -> Result<(), CommandError> {
    let documents = select_documents(args)?;
    let Some(directory) = &args.output_dir else {
        for document in &documents {
            out.write_all(document.text.as_bytes())?;
        }
        return Ok(());
    };
    fs::create_dir_all(directory).map_err(|error| CommandError::at(directory, &error))?;
    for document in &documents {
        let path = directory.join(&document.file);
        fs::write(&path, &document.text).map_err(|error| CommandError::at(&path, &error))?;
    }
    writeln!(out, "Wrote {} files to {}", documents.len(), directory.display())?;
    Ok(())
}

struct CrdDocument {
    file: String,
    text: String,
}

impl CrdDocument {
    fn yaml(name: &str, suffix: &str, object: &Value) -> CrdDocument {
        let text = format!("---\n{}", codec::to_yaml(object));
        CrdDocument { file: format!("{name}_{suffix}.yaml"), text }
    }
}

fn read_string_at<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

fn select_documents(args: &CrdsArgs) -> Result<Vec<CrdDocument>, CommandError> {
    let mut wanted = Vec::new();
    for word in &args.kinds {
        wanted.push(Kind::from_word(word).ok_or_else(|| tortie_ctl::unknown_kind(word))?);
    }
    let mut documents = Vec::new();
    if args.json_schema {
        let kinds = if wanted.is_empty() { Kind::ALL.to_vec() } else { wanted };
        for kind in Kind::ALL.iter().copied().filter(|kind| kinds.contains(kind)) {
            let text = codec::to_json(&schema::json_schema(kind)) + "\n";
            documents.push(CrdDocument { file: format!("{}.json", kind.plural()), text });
        }
        return Ok(documents);
    }
    if let Some(version) = &args.admission {
        for object in &schema::admission_policies(version) {
            // A policy and its binding have the same name, so the kind is part of the file name.
            let kind = read_string_at(object, "/kind").to_lowercase();
            documents.push(CrdDocument::yaml(read_string_at(object, "/metadata/name"), &kind, object));
        }
        return Ok(documents);
    }
    let mut found = Vec::new();
    for crd in if args.storage { schema::storage_crds() } else { schema::crds() } {
        let plural = read_string_at(&crd, "/spec/names/plural");
        let kind = match plural {
            "ipamconfigs" => Some(Kind::IPAMConfiguration),
            other => Kind::from_plural(other),
        };
        let Some(kind) = kind.filter(|kind| wanted.is_empty() || wanted.contains(kind)) else { continue };
        found.push(kind);
        documents.push(CrdDocument::yaml(read_string_at(&crd, "/spec/group"), plural, &crd));
    }
    match wanted.iter().find(|kind| !found.contains(kind)) {
        Some(kind) => Err(CommandError::message(format!(
            "{kind} is not kept as a custom resource: there is no CRD for it"
        ))),
        None => Ok(documents),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn crds(kinds: &[&str], json_schema: bool) -> CrdsArgs {
        CrdsArgs {
            kinds: kinds.iter().map(|&k| k.to_owned()).collect(),
            output_dir: None,
            json_schema,
            storage: false,
            admission: None,
        }
    }

    #[test]
    fn kinds_are_selected_by_any_name() {
        let documents = select_documents(&crds(&["gnp", "IPPool"], false)).unwrap();
        let files: Vec<_> = documents.iter().map(|d| d.file.as_str()).collect();
        assert_eq!(files, ["projectcalico.org_ippools.yaml", "projectcalico.org_globalnetworkpolicies.yaml"]);
        assert!(documents[0].text.contains("kind: CustomResourceDefinition"));
    }

    #[test]
    fn every_storage_kind_has_a_definition() {
        let args = CrdsArgs { storage: true, ..crds(&[], false) };
        let documents = select_documents(&args).unwrap();
        assert_eq!(documents.len(), super::select_documents(&crds(&[], false)).unwrap().len());
        assert!(documents.iter().all(|document| document.file.starts_with("crd.projectcalico.org_")));
        assert!(
            documents
                .iter()
                .any(|document| document.text.contains("name: ipamconfigs.crd.projectcalico.org"))
        );
    }

    #[test]
    fn kinds_without_a_definition_say_so() {
        let error = |args: CrdsArgs| select_documents(&args).err().unwrap().to_string();
        assert_eq!(
            error(crds(&["wep"], false)),
            "WorkloadEndpoint is not kept as a custom resource: there is no CRD for it"
        );
        assert_eq!(error(crds(&["pod"], false)), "resource type 'pod' is not supported");
        assert_eq!(
            error(crds(&["ipamblcoks"], false)),
            "resource type 'ipamblcoks' is not supported; did you mean ipamblocks?"
        );
        assert_eq!(select_documents(&crds(&["wep"], true)).unwrap().len(), 1);
    }

    #[test]
    fn the_manifests_have_the_definitions_of_the_types() {
        let head = "# Calico's kinds (projectcalico.org/v3), made from the types by `tortie crds`.\n";
        is_made("00-crds.yaml", head, &crds(&[], false));
        let head = "# What goes with the kinds where Kubernetes serves them itself, made by `tortie crds --admission v1beta1`. For Kubernetes 1.34\n\
                    # and 1.35, with --feature-gates=MutatingAdmissionPolicy=true and --runtime-config=admissionregistration.k8s.io/v1beta1=true;\n\
                    # from 1.36 on use `tortie crds --admission v1`.\n";
        let args = CrdsArgs { admission: Some("v1beta1".into()), ..crds(&[], false) };
        is_made("webhooks/10-policies.yaml", head, &args);
    }

    /// Compares a manifest with the generated text. `TORTIE_REFRESH=1` writes the file instead.
    fn is_made(name: &str, head: &str, args: &CrdsArgs) {
        let file = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy").join(name);
        let made: String =
            select_documents(args).unwrap().into_iter().map(|document| document.text).collect();
        let made = format!("{head}{made}");
        if std::env::var_os("TORTIE_REFRESH").is_some() {
            fs::write(&file, &made).unwrap();
        }
        assert!(
            fs::read_to_string(&file).unwrap() == made,
            "{} is not what the types say: `make deploy-crds` writes it anew",
            file.display()
        );
    }

    #[test]
    fn files_are_written_one_for_each_kind() {
        let dir = tempfile::tempdir().unwrap();
        let args = CrdsArgs { output_dir: Some(dir.path().join("crds")), ..crds(&["tier"], false) };
        let mut out = Vec::new();
        print(&args, &mut out).unwrap();
        assert!(String::from_utf8(out).unwrap().starts_with("Wrote 1 files to "));
        assert!(dir.path().join("crds/projectcalico.org_tiers.yaml").is_file());
    }
}
