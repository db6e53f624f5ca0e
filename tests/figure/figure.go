// Package figure draws the plots of docs/ in one style, and writes generated tables into Markdown pages.
package figure

import (
	"bytes"
	"fmt"
	"image/color"
	"os"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// Colors can be told apart by people with color blindness.
var Colors = []color.Color{
	color.RGBA{R: 0xd5, G: 0x5e, A: 255}, color.RGBA{G: 0x72, B: 0xb2, A: 255},
	color.RGBA{G: 0x9e, B: 0x73, A: 255}, color.RGBA{R: 0xcc, G: 0x79, B: 0xa7, A: 255},
}

// Percent are the ticks of an axis from 0 to 100 %.
var Percent = plot.ConstantTicks{{Value: 0, Label: "0"}, {Value: 0.5, Label: "50"}, {Value: 1, Label: "100 %"}}

// New returns a plot in the font of all figures.
func New(title string) *plot.Plot {
	plot.DefaultFont = font.Font{Typeface: "Liberation", Variant: "Sans"}
	p := plot.New()
	p.Title.Text = title
	p.Legend.ThumbnailWidth, p.Legend.Padding = vg.Points(14), vg.Points(3)
	return p
}

// SVG draws plots into one image with this number of columns.
func SVG(plots []*plot.Plot, columns int) ([]byte, error) {
	rows := make([][]*plot.Plot, (len(plots)+columns-1)/columns)
	for i := range rows {
		rows[i] = make([]*plot.Plot, columns)
		copy(rows[i], plots[i*columns:])
	}
	canvas := vgsvg.New(vg.Points(720), vg.Points(170*float64(len(rows))))
	dc := draw.New(canvas)
	dc.SetColor(color.White)
	dc.Fill(dc.Path())
	tiles := draw.Tiles{Rows: len(rows), Cols: columns, PadX: vg.Points(12), PadY: vg.Points(10),
		PadTop: vg.Points(8), PadBottom: vg.Points(8), PadLeft: vg.Points(8), PadRight: vg.Points(12)}
	for i, line := range plot.Align(rows, tiles, dc) {
		for j, tile := range line {
			if rows[i][j] != nil {
				rows[i][j].Draw(tile)
			}
		}
	}
	var svg bytes.Buffer
	_, err := canvas.WriteTo(&svg)
	// A browser without this font uses a similar one.
	return bytes.ReplaceAll(svg.Bytes(), []byte("Liberation Sans"), []byte("Liberation Sans,Arial,sans-serif")), err
}

// Publish writes tables into a page, between the comment that names the command and the comment that ends the tables.
func Publish(page, command, tables string) error {
	head, _, tail, err := cut(page, command)
	if err != nil {
		return err
	}
	return os.WriteFile(page, []byte(head+"\n"+tables+"\n"+tail), 0o644)
}

// Published returns the tables that Publish has written into a page.
func Published(page, command string) (tables string, err error) {
	_, tables, _, err = cut(page, command)
	return tables, err
}

// cut returns the tables of a command in a page, and what is before and after them.
func cut(page, command string) (head, tables, tail string, err error) {
	begin, end := "<!-- written by "+command+" ARGS=-update -->\n", "<!-- end of what is written -->\n"
	text, err := os.ReadFile(page)
	if err != nil {
		return "", "", "", err
	}
	head, rest, found := strings.Cut(string(text), begin)
	tables, tail, ended := strings.Cut(rest, end)
	if !found || !ended {
		return "", "", "", fmt.Errorf("%s has no comments that say where the tables of %s belong", page, command)
	}
	return head + begin, tables, end + tail, nil
}
