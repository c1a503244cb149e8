// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The directory of drop-in files of a multipath.conf(5), `conf.d`.
//!
//! Guarantees: the files are those whose names end in `.conf`, in the order of the bytes of their names. The directory is `config_dir` of
//! the main file; newer versions of multipath-tools ignore that option. An empty one means no directory. Without the option, only the
//! default file has a directory, which may be missing. Source: multipath-tools, libmultipath/config.c (`process_config_dir`).

use super::{Config, DEFAULT_DIRECTORY, DEFAULT_FILE, Problem, Setting};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

impl Config {
    /// Returns the drop-in files of the main file, which was read from `path`, and takes `config_dir` out of the configuration: it is
    /// complete when these are read.
    ///
    /// # Errors
    /// As text: `config_dir` is no absolute path, or the directory cannot be read.
    pub(super) fn drop_ins(&mut self, path: &Path) -> Result<Vec<PathBuf>, String> {
        match self.take_config_dir() {
            Some(Setting { value, .. }) if value.is_empty() => Ok(Vec::new()),
            Some(Setting { value, file, line, .. }) => {
                let within = |why: String| format!("{file}:{line}: config_dir '{}': {why}", super::read::shown(&value));
                let directory = Path::new(&value);
                if !directory.is_absolute() {
                    return Err(within("must be an absolute path, or \"\" for none".to_owned()));
                }
                files(directory).map_err(|e| within(format!("cannot be read: {e}")))
            }
            None if path == Path::new(DEFAULT_FILE) => match files(Path::new(DEFAULT_DIRECTORY)) {
                Err(e) if e.kind() == ErrorKind::NotFound => Ok(Vec::new()),
                found => found.map_err(|e| format!("{DEFAULT_DIRECTORY}: cannot be read: {e}")),
            },
            None => Ok(Vec::new()),
        }
    }

    /// Warns of a `config_dir` in a drop-in file. Call it when these are read.
    pub(super) fn warn_of_config_dir(&mut self) {
        if let Some(Setting { file, line, .. }) = self.take_config_dir() {
            let text = "config_dir: has no effect here: only the main file names a directory".to_owned();
            self.warnings.push(Problem { file: file.to_string(), line, text });
        }
    }

    fn take_config_dir(&mut self) -> Option<Setting> {
        let at = self.defaults.iter().position(|s| s.option.name == "config_dir")?;
        Some(self.defaults.remove(at))
    }
}

fn files(directory: &Path) -> std::io::Result<Vec<PathBuf>> {
    let paths: std::io::Result<Vec<PathBuf>> = directory.read_dir()?.map(|entry| Ok(entry?.path())).collect();
    let mut found: Vec<PathBuf> = paths?.into_iter().filter(|path| is_drop_in(path)).collect();
    found.sort_unstable();
    Ok(found)
}

fn is_drop_in(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.as_encoded_bytes().ends_with(b".conf"))
}
