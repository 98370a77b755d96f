// Times for people: media time of a file, and of a live camera the date and time of day where the page is read.

export function clock(seconds) {
  if (seconds === null || seconds === undefined) return "";
  const whole = Math.max(0, seconds);
  const [hours, minutes] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60];
  const rest = (Math.floor((whole % 60) * 10) / 10).toFixed(1);
  return `${hours ? `${hours}:${String(minutes).padStart(2, "0")}` : minutes}:${rest.padStart(4, "0")}`;
}

/** The time of day of a Date, or of milliseconds since 1970; of another day than today after its date. */
export function localTime(when) {
  const at = new Date(when);
  const time = at.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit" });
  if (at.toDateString() === new Date().toDateString()) return time;
  return `${at.toLocaleDateString([], { weekday: "short", day: "numeric", month: "short" })} ${time}`;
}

/** When the frame of an event was shown. */
export const timeOf = (event) => (event.time ? localTime(event.time) : clock(event.pts_s ?? event.start_s));
