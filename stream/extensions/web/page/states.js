// States of a run in words.

export const STATE_WORDS = {
  connecting: "connecting", loading: "loading the model", ok: "live", running: "live", outage: "source lost", restarting: "restarting",
  stalled: "stalled", ended: "ended", reconnecting: "reconnecting", refused: "full",
  idle: "no source", opening: "opening", ending: "stopping",
};

const GOOD_ENDS = ["finished", "interrupted", "cancelled", "elapsed", "found"];

/** Whether a run is in need of help: one that has ended as it should is not. */
export function isIll(state, reason) {
  return ["outage", "restarting", "stalled"].includes(state) || (state === "ended" && !GOOD_ENDS.includes(reason));
}

/** State and reason of a `health` message. */
export function stateOfHealth(health) {
  if (health.status === "outage" && health.frame_age_s) return ["outage", `${health.frame_age_s.toFixed(0)} s · ${health.reason}`];
  if (health.status === "ok" && !health.ready) return ["loading", health.reason];
  return [health.status, health.reason];
}
