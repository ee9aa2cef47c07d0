//! `ringway config show`.

use anyhow::Result;
use clap::{Args, Subcommand};
use ringway::settings::Settings;

use crate::output;

/// Show the settings, and where each comes from.
#[derive(Debug, Args)]
pub(crate) struct Config {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Every setting, its value, and where that comes from: default, file and line, or environment variable.
    #[command(
        after_help = "Examples:\n  ringway config show\n  RINGWAY_TIMEOUT=30s ringway config show --json"
    )]
    Show {
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
}

impl Config {
    pub(crate) fn execute(self) -> Result<()> {
        let Command::Show { json } = self.command;
        let settings = Settings::load()?;
        if json {
            let rows: Vec<_> = settings
                .rows()
                .map(|(definition, value, source)| {
                    serde_json::json!({
                        "setting": definition.name, "value": value, "source": source.to_string(),
                    })
                })
                .collect();
            return output::print_json(&rows);
        }
        let rows: Vec<_> = settings
            .rows()
            .map(|(definition, value, source)| (definition.name, value, source.to_string()))
            .collect();
        let width =
            |of: fn(&(&str, String, String)) -> usize| rows.iter().map(of).max().unwrap_or(0);
        let (name, value) = (width(|row| row.0.len()), width(|row| row.1.len()));
        let mut text = format!("{:name$}  {:value$}  from\n", "setting", "value");
        for (setting, chosen, source) in rows {
            text += &format!("{setting:name$}  {chosen:value$}  {source}\n");
        }
        output::print(&text)
    }
}
