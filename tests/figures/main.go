// SPDX-License-Identifier: Apache-2.0

// Figures keeps the measured tables of the documents. scripts/bench all-native
// gives it rows of Markdown tables, each after the name of the part of
// scripts/bench that has printed it. Those of all runs are in
// testdata/runs.txt, and a row of a document has the range over these runs.
//
//	figures <rows                prints each row, and below it that of the document
//	figures -record kind <rows   adds the rows as a run on a machine of that kind,
//	                             and writes the documents anew
package main

import (
	"cmp"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// runs is the file with the rows of all runs. A run begins with a line that
// says when and on what kind of machine it was made.
const runs = "tests/figures/testdata/runs.txt"

// pages are the documents.
var pages = []string{"docs/performance.md", "docs/rsocket.md", "docs/softroce.md"}

// keys has the number of columns that name a row of a part.
var keys = map[string]int{"calls": 2, "soft": 2, "together": 2, "soft-c": 2, "rsocket": 2, "conn": 2, "connecting": 1, "clients": 3, "transfer": 4}

func main() {
	log.SetFlags(0)
	log.SetPrefix("figures: ")
	kind := flag.String("record", "", "add the rows as a run on a machine of this `kind`")
	flag.Parse()
	text, err := io.ReadAll(os.Stdin)
	if err != nil {
		log.Fatal(err)
	}
	if err := run(string(text), *kind, os.Stdout); err != nil {
		log.Fatal(err)
	}
}

// run does what the program does in the folder of the module.
func run(text, kind string, out io.Writer) error {
	rows, err := parse(text)
	if err != nil {
		return err
	}
	documents, err := read(".")
	if err != nil {
		return err
	}
	for _, row := range rows {
		fmt.Fprintf(out, "%-10s now  %s\n", row.part, row)
		if line := documents.find(row.key()); line != "" {
			fmt.Fprintf(out, "%-10s page %s\n", "", line)
		}
	}
	if kind == "" {
		return nil
	}
	f, err := os.OpenFile(runs, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	fmt.Fprintf(f, "# %s, %s\n", time.Now().UTC().Format("2006-01-02 15:04"), kind)
	for _, row := range rows {
		fmt.Fprintf(f, "%s\t%s\n", row.part, row)
	}
	if err := f.Close(); err != nil {
		return err
	}
	all, err := recorded(".")
	if err != nil {
		return err
	}
	documents.update(all)
	return documents.write(".")
}

// row is a row of a table.
type row struct {
	part  string
	cells []string
}

func (r row) String() string { return "| " + strings.Join(r.cells, " | ") + " |" }

// key names the row among all of the same number of columns.
func (r row) key() key { return keyOf(r.cells, keys[r.part]) }

type key struct {
	name    string
	columns int
}

func keyOf(cells []string, n int) key { return key{strings.Join(cells[:n], "|"), len(cells)} }

// cells returns the cells of a line of a table, or nil.
func cells(line string) (all []string) {
	inner, ok := strings.CutPrefix(line, "|")
	if !ok {
		return nil
	}
	inner, _ = strings.CutSuffix(inner, "|")
	for cell := range strings.SplitSeq(inner, "|") {
		all = append(all, strings.TrimSpace(cell))
	}
	return all
}

// parse returns the rows of a text, each after its part and a tab. Lines that
// begin with # are left out.
func parse(text string) (rows []row, err error) {
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		part, table, _ := strings.Cut(line, "\t")
		r := row{part, cells(table)}
		if n, ok := keys[part]; !ok || len(r.cells) <= n {
			return nil, fmt.Errorf("neither a part of scripts/bench with a row of its table, nor a comment: %q", line)
		}
		rows = append(rows, r)
	}
	return rows, nil
}

// recorded returns a row for each of those that the runs have, with the range
// over the runs. top is the folder of the module.
func recorded(top string) ([]row, error) {
	text, err := os.ReadFile(filepath.Join(top, runs))
	if err != nil {
		return nil, err
	}
	rows, err := parse(string(text))
	if err != nil {
		return nil, err
	}
	var order []key
	of := map[key][]row{}
	for _, r := range rows {
		if of[r.key()] == nil {
			order = append(order, r.key())
		}
		of[r.key()] = append(of[r.key()], r)
	}
	all := make([]row, len(order))
	for i, k := range order {
		all[i] = combine(of[k])
	}
	return all, nil
}

// combine returns a row with the range of each cell over all rows, which have
// the same key.
func combine(rows []row) row {
	r := row{rows[0].part, slices.Clone(rows[0].cells)}
	for i := keys[r.part]; i < len(r.cells); i++ {
		values := make([]string, len(rows))
		for j := range rows {
			values[j] = rows[j].cells[i]
		}
		r.cells[i] = span(values)
	}
	return r
}

var (
	number = regexp.MustCompile(`-?[0-9]+(\.[0-9]+)?`)
	rounds = regexp.MustCompile(`^[0-9.]+, [0-9.]+, [0-9.]+$`) // the smallest, the median and the largest of the rounds of a run
)

// span returns the range of cells: of each number in them, "least to most", or
// the number alone if all are the same. Of rounds, it takes the medians. Cells
// that differ in more than numbers have no range, and the last one counts.
func span(values []string) string {
	medians := make([]string, len(values))
	for i, v := range values {
		medians[i] = v
		if rounds.MatchString(v) {
			medians[i] = strings.Split(v, ", ")[1]
		}
	}
	last := medians[len(medians)-1]
	numbers := make([][]string, len(medians))
	for i, v := range medians {
		if number.ReplaceAllString(v, "") != number.ReplaceAllString(last, "") {
			return last
		}
		numbers[i] = number.FindAllString(v, -1)
	}
	n := -1
	return number.ReplaceAllStringFunc(last, func(string) string {
		n++
		of := make([]string, len(numbers))
		for i := range numbers {
			of[i] = numbers[i][n]
		}
		slices.SortFunc(of, func(a, b string) int {
			x, _ := strconv.ParseFloat(a, 64)
			y, _ := strconv.ParseFloat(b, 64)
			return cmp.Compare(x, y)
		})
		if least, most := of[0], of[len(of)-1]; least != most {
			return least + " to " + most
		}
		return of[0]
	})
}

// documents are the texts of the pages.
type documents map[string]string

// read returns the documents. top is the folder of the module.
func read(top string) (documents, error) {
	d := documents{}
	for _, page := range pages {
		text, err := os.ReadFile(filepath.Join(top, page))
		if err != nil {
			return nil, err
		}
		d[page] = string(text)
	}
	return d, nil
}

// matches reports whether a line is the row with that key.
func matches(line string, k key) bool {
	c := cells(strings.TrimSpace(line))
	n := strings.Count(k.name, "|") + 1
	return len(c) == k.columns && n <= len(c) && keyOf(c, n) == k
}

// find returns the row with that key, or "".
func (d documents) find(k key) string {
	for _, page := range pages {
		for line := range strings.Lines(d[page]) {
			if matches(line, k) {
				return strings.TrimSpace(line)
			}
		}
	}
	return ""
}

// update puts the rows in place of those with the same keys.
func (d documents) update(rows []row) {
	for _, page := range pages {
		var text strings.Builder
		for line := range strings.Lines(d[page]) {
			i := slices.IndexFunc(rows, func(r row) bool { return matches(line, r.key()) })
			if i < 0 {
				text.WriteString(line)
				continue
			}
			fmt.Fprintln(&text, rows[i])
		}
		d[page] = text.String()
	}
}

// write writes the documents that have changed.
func (d documents) write(top string) error {
	before, err := read(top)
	if err != nil {
		return err
	}
	for _, page := range pages {
		if before[page] == d[page] {
			continue
		}
		if err := os.WriteFile(filepath.Join(top, page), []byte(d[page]), 0o644); err != nil {
			return err
		}
	}
	return nil
}
