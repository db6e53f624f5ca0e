package cluster

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha512"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"strings"
)

// npmRegistry has the packages of Node.js. Each package is pinned by its hash.
const npmRegistry = "https://registry.npmjs.org"

// npmFiles downloads the packages of the package-lock.json in a folder, and returns their files by their paths in that
// folder, as `npm ci` would install them there. No script of a package runs.
func npmFiles(ctx context.Context, folder string) (map[string]string, error) {
	b, err := os.ReadFile(filepath.Join(folder, "package-lock.json"))
	if err != nil {
		return nil, err
	}
	var lock struct {
		Packages map[string]struct{ Version, Integrity string }
	}
	if err := json.Unmarshal(b, &lock); err != nil {
		return nil, err
	}
	delete(lock.Packages, "") // the program itself
	files := map[string]string{}
	for at, pkg := range lock.Packages {
		name := at[strings.LastIndex(at, "node_modules/")+len("node_modules/"):]
		archive, err := npmArchive(ctx, name, pkg.Version, pkg.Integrity)
		if err != nil {
			return nil, fmt.Errorf("npm package %s: %w", name, err)
		}
		if err := unpack(archive, at, files); err != nil {
			return nil, fmt.Errorf("npm package %s: %w", name, err)
		}
	}
	return files, nil
}

// npmArchive downloads a package, and fails unless it has this hash.
func npmArchive(ctx context.Context, name, version, integrity string) ([]byte, error) {
	url := fmt.Sprintf("%s/%s/-/%s-%s.tgz", npmRegistry, name, path.Base(name), version)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	archive, err := io.ReadAll(response.Body)
	if err := errors.Join(err, response.Body.Close()); err != nil {
		return nil, err
	}
	hash := sha512.Sum512(archive)
	if got := "sha512-" + base64.StdEncoding.EncodeToString(hash[:]); got != integrity {
		return nil, fmt.Errorf("%s answered %s, with the hash %s in place of %s", url, response.Status, got, integrity)
	}
	return archive, nil
}

// unpack adds the files of a package to files, in a folder.
func unpack(archive []byte, folder string, files map[string]string) error {
	unzipped, err := gzip.NewReader(bytes.NewReader(archive))
	if err != nil {
		return err
	}
	for r := tar.NewReader(unzipped); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		content, err := io.ReadAll(r)
		if err != nil {
			return err
		}
		if _, name, ok := strings.Cut(header.Name, "/"); ok && header.Typeflag == tar.TypeReg {
			files[path.Join(folder, name)] = string(content)
		}
	}
}
