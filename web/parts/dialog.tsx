// Dialogs. The browser keeps the focus inside, closes on Esc and puts the focus back.

import type { ComponentChildren, JSX } from 'preact';
import { useLayoutEffect, useRef, useState } from 'preact/hooks';
import { ApiError } from '../api';
import { may } from '../session';
import { words } from '../words';
import { Command, tell } from './controls';
import { Problem } from './notices';

interface DialogProps {
  readonly title: string;
  readonly onClose: () => void;
  readonly children: ComponentChildren;
  readonly wide?: boolean;
}

export function Dialog({ title, onClose, children, wide = false }: DialogProps): JSX.Element {
  const node = useRef<HTMLDialogElement>(null);
  const isGone = useRef(false);
  useLayoutEffect(() => {
    const before = document.activeElement;
    const dialog = node.current;
    dialog?.showModal();
    return () => {
      // What is behind an open dialog cannot have the focus.
      isGone.current = true;
      dialog?.close();
      if (before instanceof HTMLElement && before.isConnected) before.focus();
    };
  }, []);
  const closed = (): void => {
    if (!isGone.current) onClose();
  };
  return (
    <dialog ref={node} class={wide ? 'wide' : ''} aria-label={title} onClose={closed} onCancel={closed}>
      <header>
        <h2>{title}</h2>
        <button type="button" class="quiet" onClick={onClose} aria-label={words.close}>
          ✕
        </button>
      </header>
      <div class="dialog-body">{children}</div>
    </dialog>
  );
}

interface ConfirmProps {
  readonly title: string;
  readonly children?: ComponentChildren;
  /** The words on the button that does it. */
  readonly act: string;
  readonly command?: string | undefined;
  /** What has to be typed first, for what cannot be undone. */
  readonly typed?: string | undefined;
  readonly isDestructive?: boolean;
  readonly isReady?: boolean;
  readonly perform: () => Promise<string | void>;
  readonly onClose: () => void;
  readonly wide?: boolean;
}

/** Asks before an action, shows the same as a command, and says what came of it. */
export function Confirm(props: ConfirmProps): JSX.Element {
  const [text, setText] = useState('');
  const [isBusy, setBusy] = useState(false);
  const [error, setError] = useState<ApiError | null>(null);
  const isTyped = props.typed === undefined || text === props.typed;
  const perform = async (): Promise<void> => {
    setBusy(true);
    setError(null);
    try {
      tell((await props.perform()) ?? words.done);
      props.onClose();
    } catch (refused) {
      setError(refused instanceof ApiError ? refused : new ApiError(-1, String(refused), 'page', '', {}));
      setBusy(false);
    }
  };
  return (
    <Dialog title={props.title} onClose={props.onClose} wide={props.wide ?? false}>
      <form
        onSubmit={(event) => {
          event.preventDefault();
          if (isTyped && !isBusy && props.isReady !== false) void perform();
        }}
      >
        {props.children}
        {props.typed !== undefined && (
          <label class="field">
            <span>{words.typeToConfirm(props.typed)}</span>
            <input value={text} autoComplete="off" spellcheck={false} onInput={(event) => setText(event.currentTarget.value)} />
          </label>
        )}
        <Problem error={error} />
        {props.command && (
          <p class="as-command">
            <span class="dim">{words.sameAs}</span> <Command text={props.command} />
          </p>
        )}
        <footer>
          <button type="button" onClick={props.onClose}>
            {words.cancel}
          </button>
          <button type="submit" class={props.isDestructive ? 'danger' : 'primary'} disabled={!isTyped || isBusy || props.isReady === false}>
            {isBusy ? words.working : props.act}
          </button>
        </footer>
      </form>
    </Dialog>
  );
}

interface ActionProps {
  readonly verb: string;
  readonly over?: string | undefined;
  /** Who made what is acted on, where that counts. */
  readonly owner?: string;
  readonly children: ComponentChildren;
  readonly onClick: () => void;
  readonly isDestructive?: boolean;
  readonly disabled?: boolean;
  readonly small?: boolean;
}

/** A button with words; disabled with the permission it needs where the hub would refuse. */
export function Action({ verb, over, owner = '', children, onClick, isDestructive = false, disabled = false, small = false }: ActionProps): JSX.Element {
  const allowed = may(verb, over, owner);
  const needs = over === undefined ? verb : `${verb}: ${over}`;
  return (
    <button type="button" class={`${isDestructive ? 'danger-quiet' : ''} ${small ? 'small' : ''}`} disabled={!allowed || disabled} title={allowed ? undefined : words.needs(needs)} onClick={onClick}>
      {children}
    </button>
  );
}
