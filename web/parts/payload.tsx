// Payloads: texts that strangers wrote. They become text nodes and nothing else.

import type { JSX } from 'preact';
import { useMemo, useState } from 'preact/hooks';
import { bytes, hex, tokens, visible } from '../text';
import { words } from '../words';
import { copy, download } from './controls';

interface Props {
  readonly text: string | null;
  readonly size: number;
  readonly cut?: boolean;
  readonly withheld?: boolean;
  readonly removed?: string | null;
  readonly isHex?: boolean;
  readonly name?: string;
}

// Beyond these a node for each token would hold up the page.
const COLOURED_MAX = 24 * 1024;
const SHOWN_MAX = 256 * 1024;

export function Payload({ text, size, cut = false, withheld = false, removed = null, isHex = false, name = 'payload.json' }: Props): JSX.Element {
  const [raw, setRaw] = useState(false);
  const parts = useMemo(() => (text !== null && !raw && !isHex && text.length <= COLOURED_MAX ? tokens(text) : null), [text, raw, isHex]);
  if (removed) return <p class="notice">{words.removed(removed)}</p>;
  if (withheld) return <p class="notice">{words.withheld}</p>;
  if (text === null) return <p class="dim">{words.noContent}</p>;
  const shown = text.length > SHOWN_MAX ? text.slice(0, SHOWN_MAX) : text;
  return (
    <div class="payload">
      <header>
        <span class="dim">
          {bytes(size)}
          {cut && ` · ${words.cut}`}
          {isHex && ` · ${words.notText}`}
        </span>
        <span>
          {!isHex && (
            <button type="button" class="quiet small" aria-pressed={raw} onClick={() => setRaw(!raw)}>
              {words.raw}
            </button>
          )}
          <button type="button" class="quiet small" onClick={() => void copy(text)}>
            {words.copy}
          </button>
          <button type="button" class="quiet small" onClick={() => download(name, text)}>
            {words.download}
          </button>
        </span>
      </header>
      <pre tabIndex={0} aria-label={words.content}>
        {parts ? parts.map((one, index) => (one.kind === 'mark' ? one.text : <span key={index} class={`json-${one.kind}`}>{one.text}</span>)) : isHex && !/^[0-9a-f\s|.]*$/i.test(shown) ? hex(shown) : visible(shown)}
      </pre>
      {shown.length < text.length && <p class="dim">{words.tooLongToShow}</p>}
    </div>
  );
}

/** One line of a payload, for a table. */
export function Glimpse({ text, removed, withheld }: { readonly text: string | null; readonly removed?: string | null; readonly withheld?: boolean }): JSX.Element {
  if (removed) return <span class="dim">{words.removed(removed)}</span>;
  if (withheld) return <span class="dim">{words.withheldShort}</span>;
  return <span class="mono glimpse">{text === null ? '' : visible(text.slice(0, 160))}</span>;
}
