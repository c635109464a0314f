/** Nothing jumps under the pointer: a list stays as it is while the pointer moves over it, and for a while after. */

import { useEffect, useRef, useState } from "preact/hooks";

// A pointer that was left on a list does not hold it for ever.
const HOLD_MS = 10_000;

interface Pointer {
  over: boolean;
  /** For the element. */
  on: { onMouseMove: (event: MouseEvent) => void; onMouseLeave: () => void; onTouchStart: () => void };
}

export function usePointer(): Pointer {
  const [over, setOver] = useState(false);
  const timer = useRef<ReturnType<typeof setTimeout>>(undefined);
  const leave = () => {
    clearTimeout(timer.current);
    setOver(false);
  };
  useEffect(() => () => clearTimeout(timer.current), []);
  const hold = () => {
    clearTimeout(timer.current);
    timer.current = setTimeout(leave, HOLD_MS);
    setOver(true);
  };
  const move = (event: MouseEvent) => {
    // Browsers also say so when an element comes under a pointer that rests.
    if (event.movementX !== 0 || event.movementY !== 0) hold();
  };
  return { over, on: { onMouseMove: move, onMouseLeave: leave, onTouchStart: hold } };
}

export interface Held<T> {
  /** What to show: the newest, or what was shown when the pointer came. */
  shown: T;
  /** Whether something newer waits until the pointer leaves. */
  behind: boolean;
  on: Pointer["on"];
}

/** `key` says which list it is: after a change of it, which a person makes, the next list is shown at once. */
export function useHeld<T>(fresh: T, key: string): Held<T> {
  const { over, on } = usePointer();
  const state = useRef({ key, value: fresh, before: fresh, awaited: false, compared: fresh, differs: false }).current;
  if (state.key !== key) Object.assign(state, { key, before: fresh, awaited: true });
  const arrived = state.awaited && fresh !== state.before;
  if (!over || state.value === undefined || arrived) state.value = fresh;
  if (arrived) state.awaited = false;
  // An answer that says the same again is no news; it is compared once.
  if (state.value === fresh) state.differs = false;
  else if (state.compared !== fresh) state.differs = JSON.stringify(state.value) !== JSON.stringify(fresh);
  state.compared = fresh;
  return { shown: state.value, behind: state.differs, on };
}
