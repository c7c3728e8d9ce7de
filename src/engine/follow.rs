//! Actions after the report of a run is printed: reboot, hand the run over, or publish modules.

use super::{
    RunReport, Session,
    reboot::{REBOOT_STOPPED, reboot},
    resume::{self, UNIT},
};
use crate::{change::ChangeError, error::one_line, exit::Exit, modules};

/// A message after the last event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Message<'m> {
    Note(&'m str),
    Warning(&'m str),
}

impl Session {
    /// Reboots if the report requires it and the request allows it. Hands the run over to the resume unit if the terminal
    /// has hung up. Publishes modules after a successful run. Returns the exit status of the command.
    ///
    /// # Errors
    /// If the machine does not reboot.
    pub async fn follow(
        &self,
        report: &RunReport,
        say: &mut (dyn FnMut(Message<'_>) + Send),
    ) -> Result<Exit, ChangeError> {
        // After a rollback, use its session, because it is a separate run with a different ID and driver.
        let session = self.inner.rollback.get().map_or(self, |session| &**session);
        let is_due = report.reboot.as_ref().is_some_and(|one| one.automatic);
        let manager = session
            .inner
            .desired
            .as_ref()
            .map(|one| one.packages.manager);
        let locks = manager.map_or(&[][..], |manager| manager.backend().locks());
        let rebooted = match is_due {
            true => {
                let mut note = |text: &str| say(Message::Note(text));
                reboot(&session.tools, locks, &mut note).await
            }
            false => Ok(()),
        };
        if report.exit == Exit::Ok {
            session.publish(say).await;
        }
        let may_go_on = matches!(report.exit, Exit::Terminated | Exit::RebootRequired);
        if session.tools.cancel.hung_up() && may_go_on {
            match resume::hand_over(&session.tools.host).await {
                Ok(true) => say(Message::Note(&format!("`{UNIT}` continues the run"))),
                Ok(false) => {}
                Err(error) => say(Message::Note(&format!("failed to {}", one_line(&error)))),
            }
        }
        match rebooted {
            // `reboot` has already printed the reason.
            Err(stopped) if stopped.reason == REBOOT_STOPPED => Ok(stopped.exit),
            rebooted => rebooted.map(|()| report.exit),
        }
    }

    /// Publishes the modules that were compiled here, after they passed validation on this machine.
    /// A failure does not affect this machine, but other machines have to compile the modules
    /// themselves.
    async fn publish(&self, say: &mut (dyn FnMut(Message<'_>) + Send)) {
        let desired = self.inner.desired.as_ref().filter(|desired| !desired.image);
        let driver = desired.and_then(|desired| desired.driver.as_ref());
        let Some((driver, spec)) = driver.and_then(|one| Some((one, one.publish.as_ref()?))) else {
            return;
        };
        let state = self.inner.state();
        let published = tokio::select! {
            published = modules::publish(&self.tools.host, state.facts(), driver, spec) => published,
            _ = self.tools.cancel.cancelled() => Err("stopped by a signal".to_owned()),
        };
        match published {
            Ok(None) => {}
            Ok(Some(what)) => say(Message::Note(&format!("published {what}"))),
            Err(why) => say(Message::Warning(&format!(
                "the modules compiled on this machine were not published to `{}`: {why}",
                spec.to
            ))),
        }
    }
}
