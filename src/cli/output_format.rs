//! All formats that a profile can be converted to, whichever crate writes them.

use std::str::FromStr;

use allocsample_export::Format;

/// A format by the name that a user types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputFormat {
    /// Another tool's.
    Export(Format),
    /// A page for a browser.
    Html,
    /// The tables of `query`, a directory of files.
    Parquet,
}

impl OutputFormat {
    /// The extension of its files, without the dot; no two formats share one.
    pub fn extension(self) -> &'static str {
        match self {
            Self::Export(format) => format.extension(),
            Self::Html => "html",
            Self::Parquet => "parquet",
        }
    }
}

/// The error for a name that is not a format's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown format; expected {}, html or parquet", Format::ALL.map(Format::name).join(", "))]
pub struct UnknownOutputFormat;

impl FromStr for OutputFormat {
    type Err = UnknownOutputFormat;

    fn from_str(name: &str) -> Result<Self, UnknownOutputFormat> {
        match name {
            "html" => Ok(Self::Html),
            "parquet" => Ok(Self::Parquet),
            other => other
                .parse()
                .map(Self::Export)
                .map_err(|_| UnknownOutputFormat),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_format_is_found_and_named_in_the_error() {
        let error = "gif".parse::<OutputFormat>().unwrap_err().to_string();
        for name in Format::ALL
            .map(Format::name)
            .into_iter()
            .chain(["html", "parquet"])
        {
            assert!(name.parse::<OutputFormat>().is_ok(), "{name}");
            assert!(error.contains(name), "{name}");
        }
    }
}
