// One field for a token, and how to get one.

import type { JSX } from 'preact';
import { useState } from 'preact/hooks';
import type { ApiError } from '../api';
import { Command } from '../parts/controls';
import { reconnectNow } from '../feed';
import { Problem } from '../parts/notices';
import { access, enter } from '../session';
import { words } from '../words';

export function SignIn({ isAgain = false }: { readonly isAgain?: boolean }): JSX.Element {
  const [text, setText] = useState('');
  const [error, setError] = useState<ApiError | null>(null);
  const [isBusy, setBusy] = useState(false);
  const submit = async (): Promise<void> => {
    setBusy(true);
    setError(await enter(text.trim()));
    setBusy(false);
    if (access.value === 'open') reconnectNow();
  };
  const form = (
    <form
      class="sign-in"
      onSubmit={(event) => {
        event.preventDefault();
        if (text.trim() && !isBusy) void submit();
      }}
    >
      {isAgain ? <h2>{words.signInAgain}</h2> : <h1>{words.title}</h1>}
      {isAgain && <p>{words.sessionEnded}</p>}
      <label class="field">
        <span>{words.token}</span>
        <input type="password" autofocus={!isAgain} autoComplete="off" spellcheck={false} value={text} onInput={(event) => setText(event.currentTarget.value)} />
      </label>
      <Problem error={error} />
      <button type="submit" class="primary" disabled={isBusy || !text.trim()}>
        {isBusy ? words.working : words.signIn}
      </button>
      <p class="dim">{words.tokenHint}</p>
      <Command text="signalhub ui" />
      <p class="dim">{words.tokenFor}</p>
      <Command text="signalhub token mint ui/anna --role viewer" />
    </form>
  );
  return isAgain ? <section class="notice warn">{form}</section> : <main id="main" class="alone">{form}</main>;
}
