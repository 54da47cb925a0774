//! Parser of the configuration files of daemons, felix.cfg and typha.cfg: lines of `Name = value`, as in an INI file
//! whose sections are ignored.

use std::io;
use std::path::Path;

/// Returns names and values in the order of the file. A missing file sets nothing.
pub fn read(path: &Path) -> io::Result<Vec<(String, String)>> {
    match std::fs::read_to_string(path) {
        Ok(text) => parse(&text),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

fn parse(text: &str) -> io::Result<Vec<(String, String)>> {
    let mut settings = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with(['#', ';', '[']) {
            continue;
        }
        let Some((name, value)) = line.split_once(['=', ':']) else {
            let reason = format!("line {}: {line:?} is not NAME = VALUE", number + 1);
            return Err(io::Error::new(io::ErrorKind::InvalidData, reason));
        };
        settings.push((name.trim().to_owned(), value.trim().to_owned()));
    }
    Ok(settings)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_names_and_values() {
        let text = "# a comment\n[global]\nHealthPort = 1\n\n; another\n  InterfacePrefix=cali,tap\n[x]\n";
        let wanted = [("HealthPort", "1"), ("InterfacePrefix", "cali,tap")];
        assert_eq!(parse(text).unwrap(), wanted.map(|(name, value)| (name.to_owned(), value.to_owned())));
        let error = parse("[global]\nnonsense\n").unwrap_err().to_string();
        assert_eq!(error, "line 2: \"nonsense\" is not NAME = VALUE");
        assert!(read(Path::new("/nonexistent/felix.cfg")).unwrap().is_empty());
    }
}
