// The part of the page that draws charts, with uPlot; loaded when the first chart is shown.

import uPlot from 'uplot';

export interface Line {
  readonly color: string;
  readonly values: readonly (number | null)[];
}

export interface PlotOptions {
  readonly width: number;
  readonly height: number;
  /** Seconds since 1970. */
  readonly times: readonly number[];
  readonly from: number;
  readonly to: number;
  readonly lines: readonly Line[];
  readonly marks: readonly number[];
  readonly isUtc: boolean;
  readonly grid: string;
  readonly text: string;
  readonly mark: string;
  readonly font: string;
  readonly tick: (at: number, step: number) => string;
  readonly value: (value: number) => string;
  /** Bytes have steps of powers of two; what is counted has whole ones. */
  readonly kind: 'bytes' | 'count' | 'measure';
  readonly onPoint: (index: number | null) => void;
}

export interface Plot {
  resize(width: number): void;
  destroy(): void;
}

export function draw(target: HTMLElement, options: PlotOptions): Plot {
  const { grid, text, font, lines, times } = options;
  const axis = { stroke: text, font, grid: { stroke: grid, width: 1 }, ticks: { show: false } };
  const plot = new uPlot(
    {
      width: options.width,
      height: options.height,
      padding: [8, 8, 0, 0],
      legend: { show: false },
      cursor: { y: false, points: { size: 5 }, drag: { x: false, y: false } },
      tzDate: (at) => (options.isUtc ? uPlot.tzDate(new Date(at * 1000), 'Etc/UTC') : new Date(at * 1000)),
      scales: { x: { time: true, range: [options.from, options.to] }, y: { range: (_, least, most) => range(least, most) } },
      axes: [
        { ...axis, space: 72, size: 28, values: (_, splits, __, ___, step) => splits.map((at) => options.tick(at, step)) },
        { ...axis, space: 28, size: 56, ...(STEPS[options.kind] ? { incrs: STEPS[options.kind] } : {}), values: (_, splits) => alike(splits.map((value) => options.value(value))) },
      ],
      series: [{}, ...lines.map((line) => ({ stroke: line.color, width: 1.5, points: { show: false }, spanGaps: false }))],
      hooks: {
        setCursor: [(self) => options.onPoint(self.cursor.idx ?? null)],
        draw: [(self) => drawMarks(self, options)],
      },
    },
    [times as number[], ...lines.map((line) => line.values as (number | null)[])],
    target,
  );
  return {
    resize: (width) => plot.setSize({ width, height: options.height }),
    destroy: () => plot.destroy(),
  };
}

const POWERS = Array.from({ length: 50 }, (_, power) => 2 ** power);
const WHOLE = Array.from({ length: 45 }, (_, index) => [1, 2, 5][index % 3]! * 10 ** Math.floor(index / 3));
const STEPS: Partial<Record<PlotOptions['kind'], number[]>> = { bytes: POWERS, count: WHOLE };

/** Labels of one axis: decimals only if one of them needs some. */
function alike(labels: readonly string[]): string[] {
  const short = labels.map((label) => label.replace(/\.0+(?!\d)/, ''));
  return short.some((label) => label.includes('.')) ? [...labels] : short;
}

function range(least: number | null, most: number | null): [number, number] {
  const low = Math.min(0, least ?? 0);
  const high = most ?? 1;
  return [low, high > low ? high + (high - low) * 0.08 : low + 1];
}

function drawMarks(plot: uPlot, { marks, mark }: PlotOptions): void {
  const { ctx, bbox } = plot;
  ctx.save();
  ctx.strokeStyle = mark;
  ctx.setLineDash([4, 4]);
  for (const at of marks) {
    const x = Math.round(plot.valToPos(at, 'x', true)) + 0.5;
    if (x < bbox.left || x > bbox.left + bbox.width) continue;
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
  }
  ctx.restore();
}
