// SPDX-License-Identifier: Apache-2.0

// Devices prints a row of docs/proof/devices.md for each report of verbena
// selftest:
//
//	devices FILE...            prints the table
//	devices -w PAGE FILE...    also puts it into the page, for the table there
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"os"
	"strings"
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("devices: ")
	page := flag.String("w", "", "`page` whose table to replace")
	flag.Parse()
	if err := run(*page, flag.Args()); err != nil {
		log.Fatal(err)
	}
}

// result is a check of a report.
type result struct {
	Check   string
	Outcome string
	Found   string
}

// testReport is what the table needs of a report.
type testReport struct {
	System struct{ Kernel, Libraries string }
	Device struct{ Driver, Limits, Board, Firmware string }
	Two    bool `json:"two_hosts"`

	Results []result
}

func run(page string, files []string) error {
	text, err := table(files)
	if err != nil {
		return err
	}
	if page != "" {
		old, err := os.ReadFile(page)
		if err != nil {
			return err
		}
		changed, err := replace(string(old), text)
		if err != nil {
			return fmt.Errorf("%s: %w", page, err)
		}
		return os.WriteFile(page, []byte(changed), 0o644)
	}
	_, err = fmt.Print(text)
	return err
}

const head = "| device | Linux | ok | differ | failed | not offered | not run | differs or fails in |\n|---|---|---|---|---|---|---|---|\n"

// table returns the table of the reports in files.
func table(files []string) (string, error) {
	var b strings.Builder
	b.WriteString(head)
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return "", err
		}
		var r testReport
		if err := json.Unmarshal(text, &r); err != nil {
			return "", fmt.Errorf("%s: %w", file, err)
		}
		b.WriteString(r.row())
	}
	return b.String(), nil
}

// row returns the report's row.
func (r testReport) row() string {
	count := map[string]int{}
	var other []string
	for _, one := range r.Results {
		count[one.Outcome]++
		switch one.Outcome {
		case "failed":
			other = append(other, "**"+one.Check+"**")
		case "differs":
			other = append(other, one.Check)
		}
	}
	kernel := r.System.Kernel
	if r.Device.Driver == "softroce" {
		kernel = "" // it does not depend on it
	}
	return fmt.Sprintf("| %s | %s | %d | %d | %d | %d | %d | %s |\n", r.name(), kernel, count["ok"], count["differs"], count["failed"],
		count["not offered"], count["not run"], strings.Join(other, ", "))
}

// name names the device.
func (r testReport) name() string {
	name := r.Device.Driver
	switch {
	case name == "softroce" && r.Device.Limits != "":
		name = "in user space, limits `" + r.Device.Limits + "`"
	case name == "softroce":
		name = "in user space"
	case name == "rdma_rxe":
		name = "Soft-RoCE"
	default:
		name = strings.Join(strings.Fields(name+" "+r.Device.Board+" "+r.Device.Firmware), " ")
	}
	if r.Two {
		name += ", two hosts"
	}
	return name
}

// replace puts the table into a page, for the one that begins with the same
// line.
func replace(page, table string) (string, error) {
	first, _, _ := strings.Cut(head, "\n")
	before, rest, ok := strings.Cut(page, first+"\n")
	if !ok {
		return "", fmt.Errorf("no table that begins with %s", first)
	}
	for strings.HasPrefix(rest, "|") {
		_, rest, _ = strings.Cut(rest, "\n")
	}
	return before + table + rest, nil
}
