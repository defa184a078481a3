// Charts over time. Each has a legend with the values under the pointer, a text for those who do not
// see it, and a table of its values.
//
//   <Chart title="Messages per second" t={ms} lines={[{ label, values }]} from to marks show={rate} />
//   <Spark values={[…]} label="lag" />

import type { JSX } from 'preact';
import { useEffect, useRef, useState } from 'preact/hooks';
import type { SeriesMark } from './answers';
import { useStore } from './hooks';
import { painted } from './media';
import type { Plot } from './plot';
import { bytes, count } from './text';
import { full, tick, zone } from './when';
import { words } from './words';

export interface ChartLine {
  readonly label: string;
  readonly values: readonly (number | null)[];
}

interface Props {
  readonly title: string;
  readonly t: readonly number[];
  readonly from: number;
  readonly to: number;
  readonly lines: readonly ChartLine[];
  readonly marks?: readonly SeriesMark[];
  readonly show: (value: number | null | undefined) => string;
  readonly height?: number;
}

const known = (values: readonly (number | null)[]): number[] => values.filter((one): one is number => one !== null);

export function Chart({ title, t, from, to, lines, marks = [], show, height = 168 }: Props): JSX.Element {
  const box = useRef<HTMLDivElement>(null);
  const [point, setPoint] = useState<number | null>(null);
  const [isTable, setTable] = useState(false);
  const zoned = useStore(zone);
  const round = useStore(painted);
  const labels = lines.map((line) => line.label).join();

  useEffect(() => {
    const node = box.current;
    if (!node || isTable) return undefined;
    let plot: Plot | null = null;
    let gone = false;
    const styles = getComputedStyle(document.documentElement);
    const color = (name: string): string => styles.getPropertyValue(name).trim();
    const probe = (name: string): string => {
      node.style.color = `var(${name})`;
      const found = getComputedStyle(node).color;
      node.style.color = '';
      return found;
    };
    const observer = new ResizeObserver(() => plot?.resize(node.clientWidth));
    void import('./plot').then(({ draw }) => {
      if (gone) return;
      plot = draw(node, {
        width: node.clientWidth,
        height,
        times: t.map((at) => at / 1000),
        from: from / 1000,
        to: to / 1000,
        lines: lines.map((line, index) => ({ color: probe(`--line-${index + 1}`), values: line.values })),
        marks: marks.map((mark) => mark.at / 1000),
        isUtc: zoned === 'utc',
        grid: probe('--line'),
        text: probe('--dim'),
        mark: probe('--warn'),
        font: `11px ${color('--sans')}`,
        tick,
        value: (value) => show(value),
        kind: show === bytes ? 'bytes' : show === count ? 'count' : 'measure',
        onPoint: setPoint,
      });
      observer.observe(node);
    });
    return () => {
      gone = true;
      observer.disconnect();
      plot?.destroy();
    };
  }, [t, from, to, labels, lines[0]?.values, lines[1]?.values, lines[2]?.values, lines[3]?.values, zoned, round, isTable, height]);

  const summary = lines.map((line) => summed(line, show)).join('; ');
  return (
    <section class="chart" aria-label={title}>
      <header>
        <h3>{title}</h3>
        <p class="chart-point" aria-hidden="true">
          {point !== null && t[point] !== undefined ? full(t[point]) : ''}
        </p>
        <button type="button" class="quiet small" aria-pressed={isTable} onClick={() => setTable(!isTable)}>
          {isTable ? words.asChart : words.asTable}
        </button>
      </header>
      <ul class="legend">
        {lines.map((line, index) => (
          <li key={line.label}>
            <i class={`swatch line-${index + 1}`} aria-hidden="true" />
            {line.label} <b>{show(point === null ? lastOf(line.values) : line.values[point])}</b>
          </li>
        ))}
      </ul>
      {isTable ? (
        <ValueTable title={title} t={t} lines={lines} show={show} />
      ) : (
        <div class="plot" ref={box} role="img" aria-label={`${title}. ${summary}`} style={{ height: `${height}px` }} />
      )}
    </section>
  );
}

function lastOf(values: readonly (number | null)[]): number | null {
  return known(values).at(-1) ?? null;
}

function summed(line: ChartLine, show: Props['show']): string {
  const values = known(line.values);
  if (values.length === 0) return `${line.label}: ${words.nothingMeasured}`;
  let least = Infinity;
  let most = -Infinity;
  for (const value of values) {
    least = Math.min(least, value);
    most = Math.max(most, value);
  }
  return `${line.label}: ${words.last} ${show(values.at(-1))}, ${words.least} ${show(least)}, ${words.most} ${show(most)}`;
}

function ValueTable({ title, t, lines, show }: Pick<Props, 'title' | 't' | 'lines' | 'show'>): JSX.Element {
  const step = Math.max(1, Math.ceil(t.length / 60));
  const rows = t.map((at, index) => ({ at, index })).filter(({ index }) => (t.length - 1 - index) % step === 0).reverse();
  return (
    <div class="plain-scroll" tabIndex={0} role="region" aria-label={title}>
      <table class="plain">
        <thead>
          <tr>
            <th scope="col">{words.time}</th>
            {lines.map((line) => (
              <th key={line.label} scope="col" class="end">
                {line.label}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.map(({ at, index }) => (
            <tr key={at}>
              <td class="mono">{full(at)}</td>
              {lines.map((line) => (
                <td key={line.label} class="end mono">
                  {show(line.values[index])}
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

export function Spark({ values, label }: { readonly values: readonly number[]; readonly label: string }): JSX.Element | null {
  if (values.length < 2) return null;
  const most = Math.max(...values, 1);
  const points = values.map((value, index) => `${((index / (values.length - 1)) * 100).toFixed(1)},${(23 - (value / most) * 22).toFixed(1)}`).join(' ');
  return (
    <svg class="spark" viewBox="0 0 100 24" preserveAspectRatio="none" role="img" aria-label={label}>
      <polyline points={points} />
    </svg>
  );
}
