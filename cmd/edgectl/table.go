package main

import (
	"strings"
	"unicode/utf8"
)

// tone is how a cell is shown on a terminal.
type tone string

const (
	plain tone = ""
	bad   tone = "\x1b[31;1m"
	warn  tone = "\x1b[33m"
	faint tone = "\x1b[2m"
)

type cell struct {
	text string
	tone tone
}

// page collects the sections of a text output. Columns are aligned by
// characters; colours only ever surround the padded text.
type page struct {
	b      strings.Builder
	colour bool
}

func (p *page) paint(s string, t tone) string {
	if !p.colour || t == plain || s == "" {
		return s
	}
	return string(t) + s + "\x1b[0m"
}

// say writes one line.
func (p *page) say(t tone, s string) {
	p.b.WriteString(p.paint(line(s), t) + "\n")
}

// section is say after an empty line.
func (p *page) section(t tone, s string) {
	p.b.WriteByte('\n')
	p.say(t, s)
}

// table writes an empty line, a head and rows; the last column is as long as
// it is. Columns that are empty in every row are left out.
func (p *page) table(head []string, rows [][]cell) {
	width := make([]int, len(head))
	for _, row := range rows {
		for i := range row {
			row[i].text = line(row[i].text)
			width[i] = max(width[i], utf8.RuneCountInString(row[i].text))
		}
	}
	last := 0
	for i := range head {
		if width[i] > 0 {
			width[i], last = max(width[i], len(head[i])), i
		}
	}
	p.b.WriteByte('\n')
	titles := make([]cell, len(head))
	for i := range head {
		titles[i] = cell{head[i], faint}
	}
	for _, row := range append([][]cell{titles}, rows...) {
		p.row(row[:last+1], width)
	}
}

func (p *page) row(row []cell, width []int) {
	var b strings.Builder
	for i, c := range row {
		if width[i] == 0 {
			continue
		}
		b.WriteString(p.paint(c.text, c.tone))
		if i < len(row)-1 {
			b.WriteString(strings.Repeat(" ", width[i]-utf8.RuneCountInString(c.text)+2))
		}
	}
	p.b.WriteString(strings.TrimRight(b.String(), " ") + "\n")
}

// known keeps what is empty from looking like nothing is wrong.
func known(s string) string {
	if s == "" {
		return "unknown"
	}
	return s
}
