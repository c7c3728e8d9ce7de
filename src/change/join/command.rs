//! A command of the administrator's that joins. Its secrets come as environment, from a file that only root may read.

use camino::Utf8Path;

use super::Join;
use crate::{
    change::{Applier, ChangeError, JoinError, Sink},
    host::Cmd,
    model::{environment, secret::Secret},
};

impl Applier {
    pub(super) async fn join_by_command(
        &self,
        join: &Join,
        command: &[String],
        (environment_file, joined_file): (Option<&Utf8Path>, &Utf8Path),
        sink: &dyn Sink,
    ) -> Result<(), ChangeError> {
        let Some((program, args)) = command.split_first() else {
            return Err(ChangeError::Unreadable {
                what: "join the cluster".to_owned(),
                why: "the command is empty".to_owned(),
            });
        };
        let mut cmd = Cmd::new(program, args.iter().cloned()).deadline(join.timeout());
        if let Some(path) = environment_file {
            let text = self.secret(path)?;
            let variables = environment::parse(text.expose()).map_err(|why| JoinError::Secret {
                path: path.to_owned(),
                why,
            })?;
            for (name, value) in variables {
                let value = Secret::new(value);
                self.secrets.learn(&value);
                cmd = cmd.secret_env(&name, &value);
            }
        }
        let ran = self.exec(&cmd, sink).await;
        (ran.and_then(|output| output.success(&cmd))).map_err(|source| JoinError::Command {
            source: Box::new(source),
        })?;
        if self.host.files.exists(joined_file)? {
            return Ok(());
        }
        Err(JoinError::NotJoined {
            what: program.clone(),
            seconds: join.timeout_seconds,
            last_words: Some(format!(
                "the command ended well, but `{joined_file}` does not exist"
            )),
        }
        .into())
    }
}
