// Program rename gives a fork its own names: owner, repository, Go module, API group and registry, in all texts and
// file names that git tracks. Then it generates again what depends on them, empties the catalog, whose bundles belong
// to the original, and says what is left to do by hand.
//
//	go run ./tools/rename -owner OWNER -repository REPOSITORY -group cache.DOMAIN
//
// It reads the present names from the repository, so a fork of a fork works too.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"strings"
)

func main() {
	to := names{}
	flag.StringVar(&to.owner, "owner", "", "user or organization on GitHub (required)")
	flag.StringVar(&to.repository, "repository", "", "name of repository, OLM package and namespace (default: as it is)")
	flag.StringVar(&to.module, "module", "", "Go module (default github.com/OWNER/REPOSITORY)")
	flag.StringVar(&to.group, "group", "", "API group, in a domain of yours (default cache.OWNER.github.io)")
	flag.StringVar(&to.registry, "registry", "", "image of the operator, without tag (default ghcr.io/OWNER/REPOSITORY)")
	flag.Parse()
	if err := run(to); err != nil {
		fmt.Fprintln(os.Stderr, "rename:", err)
		os.Exit(1)
	}
}

func run(to names) error {
	r, err := open(".")
	if err != nil {
		return err
	}
	changes, err := r.git("status", "--porcelain")
	if err == nil && changes != "" {
		err = errors.New("commit or remove these changes first:\n" + changes)
	}
	if err != nil {
		return err
	}
	if to, err = to.complete(r.names); err != nil {
		return err
	}
	lineLength, err := r.rename(to)
	if err != nil {
		return err
	}
	if err := r.allowLongLines(lineLength); err != nil {
		return err
	}
	for _, command := range [][]string{
		{"make", "generate", "bundle"}, // builds also what the next command needs
		{"tools/catalog", "empty", "catalog"},
		{"go", "test", "./controllers/desired", "-run", "TestGolden", "-update"},
	} {
		fmt.Println("+", strings.Join(command, " "))
		cmd := exec.CommandContext(context.Background(), command[0], command[1:]...)
		cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("%s: %w", strings.Join(command, " "), err)
		}
	}
	fmt.Printf(byHand, to.group, to.registry)
	if lineLength > maxLine {
		fmt.Println("- The names have made lines of Go too long: line-length in .golangci.yml was raised.")
	}
	return nil
}

const byHand = `
Left to do:
- Read the changes, run git add --all, commit them, and run make test.
- Delete the tags of the original's releases (git tag --list 'v*'). The catalog is empty until your first release.
- Replace the maintainers, with their address, and the provider: .github/CODE_OF_CONDUCT.md, config/manifests/bases
  and config/operatorhub (OWNER). Set your first version: VERSION in the Makefile. Then run make bundle, and commit the
  result.
- On GitHub, set up the repository as RELEASING.md says ("On GitHub").
- Clusters with the original keep their objects: this operator looks only at objects of %s.
- Nothing is published under %s yet: RELEASING.md says how to release.
  After the first release, remove these notes:
  git grep -E 'can be pulled from|(nothing|no image) is published' README.md docs
`
